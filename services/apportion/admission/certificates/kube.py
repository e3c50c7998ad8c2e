"""Certificates in a cluster: kept in one Secret, trusted through one webhook configuration.

Both are made by the manifests and only changed here, so the rights to them can name them.
Invariant: a Secret that another replica has changed since it was read is never overwritten.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from apportion.admission.certificates.issued import CertificateError, Issued, read
from apportion.admission.certificates.keeper import StoreError
from apportion.runtime.kube.client import Answer, KubeApi, KubeRefused, KubeUnavailable

JSON_PATCH = "application/json-patch+json"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_CONFLICT = 409
_NOT_FOUND = 404
_APPLY = "kubectl apply -k deploy/kubernetes makes it"

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class KubeStore:
    """See `Store`. `secret` is namespace and name; `configuration` is the webhooks' own."""

    def __init__(self, api: KubeApi, *, secret: tuple[str, str], configuration: str) -> None:
        namespace, name = secret
        self._api = api
        self._secret_path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
        self._configuration_path = f"{CONFIGURATIONS}/{configuration}"
        self._secret: dict[str, Any] = {}

    async def load(self) -> tuple[tuple[Issued, ...], str]:
        """See `Store`. What cannot be read in the Secret is as if it were not there."""
        self._secret = await self._get(self._secret_path)
        data: dict[str, str] = self._secret.get("data") or {}
        chain = []
        for name, certificate in sorted(data.items()):
            if not name.endswith(".crt"):
                continue
            try:
                key = data.get(f"{name.removesuffix('.crt')}.key", "")
                chain.append(read(_bytes(certificate), _bytes(key)))
            except (CertificateError, binascii.Error, ValueError) as error:
                _log.warning("%s of the Secret of certificates %s", name, error)
        chain.sort(key=lambda each: each.made_s)
        return tuple(chain), str(self._secret["metadata"].get("resourceVersion", ""))

    async def save(self, chain: Sequence[Issued], version: str) -> bool:
        """See `Store`."""
        data = {}
        for each in chain:
            data[f"{each.made_s:.0f}.crt"] = _text(each.certificate)
            data[f"{each.made_s:.0f}.key"] = _text(each.key)
        secret = self._secret | {"data": data}
        secret["metadata"] = secret["metadata"] | {"resourceVersion": version}
        answer = await self._ask("PUT", self._secret_path, secret)
        if answer.status == _CONFLICT:
            return False
        if not answer.ok:
            raise _refused(self._secret_path, answer.refusal())
        return True

    async def publish(self, trusted: bytes) -> None:
        """See `Store`. Nothing is written where it says so already."""
        found = await self._get(self._configuration_path)
        bundle, patches = _text(trusted), []
        for number, webhook in enumerate(found.get("webhooks") or ()):
            if (webhook.get("clientConfig") or {}).get("caBundle") != bundle:
                at = f"/webhooks/{number}"
                patches.append({"op": "test", "path": f"{at}/name", "value": webhook.get("name")})
                path = f"{at}/clientConfig/caBundle"
                patches.append({"op": "add", "path": path, "value": bundle})
        if patches:
            answer = await self._ask("PATCH", self._configuration_path, patches, JSON_PATCH)
            if not answer.ok:
                raise _refused(self._configuration_path, answer.refusal())

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            return _decode(await self._api.get(path))
        except KubeRefused as error:
            raise _refused(path, error) from None
        except KubeUnavailable as error:
            raise StoreError(str(error)) from None

    async def _ask(
        self, method: str, path: str, body: object, form: str = "application/json"
    ) -> Answer:
        try:
            return await self._api.request(method, path, body=_encode(body), content_type=form)
        except KubeUnavailable as error:
            raise StoreError(str(error)) from None


def _refused(path: str, error: KubeRefused) -> StoreError:
    cure = f"; {_APPLY}" if error.status == _NOT_FOUND else ""
    return StoreError(f"{path}: {error}{cure}")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
