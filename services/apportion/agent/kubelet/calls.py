"""Defines the gRPC methods that the kubelet and its plugins call, and serves them on sockets."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import grpc

from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.runtime.process.config import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
_SOCKET_BYTES_MAX: Final = 107  # of a socket's path; see unix(7), `sun_path`
VERSION: Final = "v1beta1"
BYTES_MAX: Final = 16 << 20  # a hundred times a kubelet's answer about a few hundred pods
OPTIONS: Final = (
    ("grpc.max_receive_message_length", BYTES_MAX),
    ("grpc.max_send_message_length", BYTES_MAX),
)


class Call(NamedTuple):
    """One gRPC method of a kubelet socket: its path, request type and response type."""

    path: str
    request: Any
    response: Any
    streams: bool = False

    def on(self, channel: grpc.aio.Channel) -> Callable[..., Any]:
        """Return a function that calls the method over the gRPC channel."""
        kind = channel.unary_stream if self.streams else channel.unary_unary
        return kind(  # type: ignore[no-any-return]
            self.path,
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )

    def handler(self, method: F) -> F:
        """Mark a method, as a decorator, as the handler of this call; see `listening`."""
        method.call = self  # type: ignore[attr-defined]
        return method

    def served(self, answer: Callable[..., Awaitable[Any] | Any]) -> grpc.RpcMethodHandler:
        """Return a server's gRPC handler, which answers the method by calling `answer`."""
        kind = (
            grpc.unary_stream_rpc_method_handler
            if self.streams
            else grpc.unary_unary_rpc_method_handler
        )
        return kind(
            answer,
            request_deserializer=self.request.FromString,
            response_serializer=self.response.SerializeToString,
        )


REGISTER = Call("/v1beta1.Registration/Register", pb.RegisterRequest, pb.Empty)
OPTIONS_OF = Call("/v1beta1.DevicePlugin/GetDevicePluginOptions", pb.Empty, pb.Options)
LIST_AND_WATCH = Call("/v1beta1.DevicePlugin/ListAndWatch", pb.Empty, pb.Devices, streams=True)
ALLOCATE = Call("/v1beta1.DevicePlugin/Allocate", pb.AllocateRequest, pb.AllocateResponse)
PRE_START = Call("/v1beta1.DevicePlugin/PreStartContainer", pb.PreStartRequest, pb.Empty)
POD_RESOURCES = Call("/v1.PodResourcesLister/List", pb.Empty, pb.PodResourcesResponse)
PLUGIN_INFO = Call("/pluginregistration.Registration/GetInfo", pb.Empty, pb.PluginInfo)
PLUGIN_REGISTERED = Call(
    "/pluginregistration.Registration/NotifyRegistrationStatus", pb.PluginRegistered, pb.Empty
)
_DRA = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
PREPARE_CLAIMS = Call(f"{_DRA}NodePrepareResources", pb.Claims, pb.PreparedClaims)
UNPREPARE_CLAIMS = Call(f"{_DRA}NodeUnprepareResources", pb.Claims, pb.UnpreparedClaims)
WATCH_HEALTH = Call(
    "/v1alpha1.DRAResourceHealth/NodeWatchResources", pb.Empty, pb.DevicesHealth, streams=True
)
DRA_VERSIONS: Final = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")


async def listening(servicer: object, *sockets: Path) -> grpc.aio.Server:
    """Start a gRPC server on the sockets, with the handlers of `servicer`. Raises ConfigError."""
    server = grpc.aio.server(options=OPTIONS)
    handlers = vars(type(servicer)).items()
    serve(server, {m.call: getattr(servicer, name) for name, m in handlers if hasattr(m, "call")})
    for path in sockets:
        if len(str(path).encode()) > _SOCKET_BYTES_MAX:
            fix = f"a socket path has at most {_SOCKET_BYTES_MAX} bytes; use a shorter one"
            raise ConfigError("--kubelet", str(path), fix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


def serve(server: grpc.aio.Server, answers: dict[Call, Callable[..., Any]]) -> None:
    """Register each function in `answers` with the server, as the handler of its method."""
    services: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
    for call, answer in answers.items():
        service, method = call.path[1:].split("/")
        services.setdefault(service, {})[method] = call.served(answer)
    handlers = [
        grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items()
    ]
    server.add_generic_rpc_handlers(handlers)
