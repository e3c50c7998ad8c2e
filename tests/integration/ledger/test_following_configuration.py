"""Tests of a reader that follows only the ledger's configuration events, as the webhook does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apportion.core.ledger.state import State
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import connect
from apportion.runtime.jetstream.following import ConfigurationLedger, configuration_rules
from apportion.runtime.jetstream.object_store import BadObject, Bucket
from apportion.runtime.jetstream.snapshots import (
    BEGINNING,
    CONFIGURATION,
    keep_configuration,
    kept_configuration,
)
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion.runtime.ledger.port import Draft, LedgerHole
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import Configuration, ConfigurationChanged
from apportion_schemas.configuration import NvidiaConfiguration
from tests.support.facts import Facts
from tests.support.nats import Bus, PlainServer, Proxy, ignore, remake_stream
from tests.support.polling import until


@pytest.fixture
async def facts(bus: Bus) -> Facts:
    """Provide a writer that appends events to the ledger."""
    opened = Facts(bus)
    await opened.open()
    return opened


class Following:
    """A follower that folds only the configuration events of a ledger."""

    def __init__(self, ledger: ConfigurationLedger) -> None:
        self.ledger = ledger
        self.cluster = StateFold(State(rules=configuration_rules()))
        self.reader = Reader(ledger, self.cluster, metrics=Metrics())

    @property
    def names(self) -> tuple[str, ...]:
        """Return the scheduler names in the current configuration, by which tests identify it."""
        return self.cluster.state.configuration.scheduler_names

    async def comes_to(self, *names: str) -> None:
        """Wait until a configuration with these scheduler names is in force."""

        async def there() -> bool:
            return self.names == names

        await until(there, f"the configuration of {names}")


@contextlib.asynccontextmanager
async def following(bus: Bus, *, port: int = 0) -> AsyncIterator[Following]:
    """Provide a follower that has caught up with the ledger. With `port` it connects through the
    proxy on that port."""
    made = Following(ConfigurationLedger((await bus.connect("admission", port=port)).wire))
    running = asyncio.create_task(made.reader.run())
    try:
        await asyncio.wait_for(made.reader.caught_up(), 20)
        yield made
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def changed(*names: str) -> ConfigurationChanged:
    """Return a ConfigurationChanged event with these scheduler names."""
    return ConfigurationChanged(by="test", configuration=Configuration(scheduler_names=names))


def refused() -> ConfigurationChanged:
    """Return an invalid configuration, in which two resources have one name, so that every fold
    refuses it."""
    nvidia = NvidiaConfiguration(resource_count_name="a.b/c", resource_memory_name="a.b/c")
    return ConfigurationChanged(by="test", configuration=Configuration(nvidia=nvidia))


async def dropped(bus: Bus, last: int) -> None:
    """Drop the ledger's records up to and including revision `last`."""
    await stream.drop((await bus.connect("bootstrap")).wire, last=last)


async def keep(bus: Bus, configured: int) -> None:
    """Save the configuration of revision `configured` outside the stream, as `ledger trim` does."""
    wire = (await bus.connect("bootstrap")).wire
    record = await stream.read_record((await bus.connect("operator")).wire, configured)
    assert record is not None
    await keep_configuration(Bucket(wire, BEGINNING), record)


async def test_the_newest_is_in_force_and_then_each_that_comes(bus: Bus, facts: Facts) -> None:
    """A follower gets only configurations: the newest one first, and then each new one."""
    await facts.submit("a", "b")
    await facts.write(changed("first"))
    await facts.write(changed("second"))
    await facts.submit("c")
    async with following(bus) as found:
        assert found.names == ("second",)
        assert not found.cluster.state.pods
        await facts.submit("d")
        await facts.write(changed("third"))
        await found.comes_to("third")


async def test_a_ledger_without_one_is_caught_up_with_at_once(bus: Bus, facts: Facts) -> None:
    """On a ledger without a configuration a follower is caught up at once, with the default
    configuration."""
    await facts.submit("a")
    async with following(bus) as found:
        assert found.cluster.state.configuration == Configuration()
        await facts.write(changed("first"))
        await found.comes_to("first")
        assert found.ledger.in_touch


async def test_one_that_is_refused_changes_nothing(bus: Bus, facts: Facts) -> None:
    """If the newest configuration is invalid, the previous one stays in force."""
    await facts.write(changed("first"))
    await facts.write(refused())
    async with following(bus) as found:
        assert found.names == ("first",)
        assert found.reader.revision == 2


async def test_what_comes_while_the_server_is_down_is_found(bus: Bus, facts: Facts) -> None:
    """While the server is down a follower keeps its configuration, and reads changes after the
    restart."""
    await facts.write(changed("first"))
    async with following(bus) as found:
        await bus.crash()

        async def away() -> bool:
            return not found.ledger.in_touch

        await until(away, "the loss to be noticed")
        assert (found.names, found.reader.not_ready()) == (("first",), [])
        await bus.restart()
        await facts.write(changed("second"))
        await found.comes_to("second")
        assert found.ledger.in_touch


async def test_on_a_trimmed_ledger_it_begins_with_what_is_kept(bus: Bus, facts: Facts) -> None:
    """On a trimmed ledger the follower starts with the configuration that was saved outside the
    stream."""
    await facts.write(changed("first"))
    await facts.submit("a", "b")
    await keep(bus, 1)
    await dropped(bus, 2)
    async with following(bus) as found:
        assert found.names == ("first",)
        assert found.cluster.state.configuration_revision == 1


async def test_newer_ones_win_over_the_one_that_is_kept(bus: Bus, facts: Facts) -> None:
    """A valid configuration in the stream overrides the copy that was saved outside the stream.
    Invalid configurations are ignored."""
    await facts.submit("a")
    await facts.write(changed("first"))
    await keep(bus, 2)
    await dropped(bus, 1)
    await facts.write(changed("second"))
    async with following(bus) as found:
        assert found.names == ("second",)
    await keep(bus, 3)
    await facts.write(refused())
    await dropped(bus, 3)
    async with following(bus) as found:
        assert found.names == ("second",)


async def test_what_came_and_was_dropped_while_it_was_away_is_found(
    bus: Bus, facts: Facts, proxy: Proxy
) -> None:
    """A follower finds a configuration that was appended and trimmed while the follower was
    disconnected."""
    await facts.write(changed("first"))
    async with following(bus, port=proxy.port) as found:
        proxy.mute()
        await facts.write(changed("second"))
        await facts.submit("a")
        await keep(bus, 2)
        await dropped(bus, 2)
        assert found.names == ("first",)
        await proxy.cut()
        await found.comes_to("second")


async def test_trimming_and_a_lost_connection_end_nothing(bus: Bus, facts: Facts) -> None:
    """The follower continues after the configuration's event is trimmed and after the server
    crashes."""
    await facts.write(changed("first"))
    async with following(bus) as found:
        await facts.submit("a", "b")
        await keep(bus, 1)
        await dropped(bus, 2)
        await bus.crash()
        await bus.restart()
        await facts.write(changed("second"))
        await found.comes_to("second")


async def test_a_ledger_made_anew_ends_it(bus: Bus, tmp_path: Path) -> None:
    """If the ledger is deleted and created again, the follower ends with LedgerHole."""
    config = (await stream.read_info((await bus.connect("operator")).wire)).config
    plain = PlainServer(tmp_path / "plain")
    await plain.start()
    ledger = await connect(plain.url, name="test")
    await remake_stream(ledger.wire, config)
    subscription = await ConfigurationLedger(ledger.wire).follow(ignore)
    await subscription.caught_up()
    await call_api(ledger.wire, f"STREAM.DELETE.{STREAM}")
    await remake_stream(ledger.wire, config)
    port = int(plain.url.rpartition(":")[2])
    await plain.stop()
    await plain.start(port=port)
    with pytest.raises(LedgerHole, match="was recreated"):
        await subscription.join()
    await ledger.close()
    await plain.stop()


async def test_an_event_of_a_newer_build_halts_it(bus: Bus, facts: Facts) -> None:
    """The follower halts at an event of a newer build, because it may contain the configuration in
    force."""
    await facts.write(changed("first"))
    event = (
        b'{"specversion":"1.0","type":"apportion.dev/ConfigurationChanged","schemaversion":99,'
        b'"id":"x","source":"future","time":"2030-01-01T00:00:00.000000Z","data":{}}'
    )
    async with following(bus) as found:
        await (await bus.connect("operator")).append([Draft(CONFIGURATION, "x", event)])

        async def halted() -> str:
            return found.reader.halted

        reason = await until(halted, "the reader to halt")
        assert "schemaversion" in reason


async def test_what_we_did_not_keep_is_named(bus: Bus) -> None:
    """A configuration that was saved outside the stream without a revision is rejected."""
    bucket = Bucket((await bus.connect("bootstrap")).wire, BEGINNING)
    await bucket.put_alone("configuration", b"{}", {})
    with pytest.raises(BadObject, match="has revision ''"):
        await kept_configuration(Bucket((await bus.connect("operator")).wire, BEGINNING))
