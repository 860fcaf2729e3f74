"""Emitted modules on the disk: what somebody else left there is written anew."""

import pytest

from fusioncc.runtime.load import kernel_folder, load


@pytest.mark.parametrize("found", [b"", b"VALUE = 2\n", bytes(range(128, 178))], ids=["empty", "other", "garbage"])
def test_a_file_that_is_not_the_module_is_replaced(found: bytes) -> None:
    source = f"VALUE = 1  # {found!r}\n"
    assert load("damaged", source).VALUE == 1
    (path,) = (each for each in kernel_folder().glob("damaged_*.py") if each.read_text() == source)
    path.write_bytes(found)
    load.cache_clear()
    assert load("damaged", source).VALUE == 1
    assert path.read_text() == source
