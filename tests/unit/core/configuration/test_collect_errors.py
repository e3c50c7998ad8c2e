"""A configuration document's errors are all reported at once, each with its key."""

from apportion.core.configuration.collect_errors import every_error, remove_errors


def keys(document: object) -> list[str]:
    """Return the configuration key of every error, sorted."""
    return sorted(error.field for error in every_error(document))


def test_a_sound_document_has_none() -> None:
    """A valid document and an empty document have no errors."""
    assert every_error({}) == []
    assert every_error({"schedulerNames": ["apportion"]}) == []


def test_all_are_named_and_not_only_the_first() -> None:
    """Unknown keys, wrong types and contradictions are all reported, not only the first error."""
    document = {
        "schedulerNames": ["a", "a"],
        "nvidia": {"deviceSplitCount": "many", "whatever": 1},
        "policies": {},
    }
    found = keys(document)
    assert "policies" in found
    assert "nvidia.whatever" in found
    assert "nvidia.deviceSplitCount" in found
    assert "schedulerNames" in found


def test_entries_keep_their_positions() -> None:
    """An error in a list entry states the entry's position in the document, even if earlier entries
    are invalid too."""
    sound = {"name": "b", "devicesplitcount": 5}
    document = {"nodeconfig": [{"nam": "a"}, sound, {"name": "c", "bogus": 1}, {}]}
    found = keys(document)
    assert found == [
        "nodeconfig[0].nam", "nodeconfig[0].name", "nodeconfig[2].bogus", "nodeconfig[3].name",
    ]  # fmt: skip


def test_what_is_no_object_is_one_error() -> None:
    """A document that is not a JSON object has exactly one error."""
    assert len(every_error(7)) == 1


def test_a_part_that_is_removed_because_of_a_missing_value_is_named() -> None:
    """If a list entry becomes unusable without its faulty value, an error reports the entry's path
    and its position in the document."""
    nodes = [{}, {"name": 5, "devicesplitcount": 20}, {"name": "b", "devicesplitcount": 5}]
    left, found, parts = remove_errors({"nodeconfig": nodes})
    assert left == {"nodeconfig": [nodes[2]]}
    assert sorted(error.field for error in found) == ["nodeconfig[0].name", "nodeconfig[1].name"]
    assert sorted(error.field for error in parts) == ["nodeconfig[0]", "nodeconfig[1]"]
