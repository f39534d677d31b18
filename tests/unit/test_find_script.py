"""Scripts of several suites in one process: each sees its own modules, and nothing else changes."""

import sys

import pytest

from viva.catalog import find_script


@pytest.fixture
def suites(tmp_path):
    """Two suites with modules of the same names, and a folder above both that they share."""
    for name in ("a", "b"):
        folder = tmp_path / name
        (folder / "pack").mkdir(parents=True)
        (folder / "vv_checks.py").write_text("import vv_helpers, vv_shared\ndef who(): return vv_helpers.NAME")
        (folder / "vv_helpers.py").write_text(f"NAME = {name!r}")
        (folder / "pack" / "__init__.py").write_text("")
        (folder / "pack" / "inner.py").write_text(f"from . import other\ndef who(): return other.NAME + {name!r}")
        (folder / "pack" / "other.py").write_text(f"NAME = {name!r}")
    (tmp_path / "vv_shared.py").write_text("")
    return tmp_path


def roots_of(suites, name):
    return (str(suites), str(suites / name))


def call(reference, roots):
    _, function = find_script(reference, roots)
    assert function is not None
    return function()


def test_each_suite_gets_its_own_modules(suites):  # N8
    assert call("vv_checks.who", roots_of(suites, "a")) == "a"
    assert call("vv_checks.who", roots_of(suites, "b")) == "b"
    assert call("vv_checks.who", roots_of(suites, "a")) == "a"
    assert call("pack.inner.who", roots_of(suites, "a")) == "aa"
    assert call("pack.inner.who", roots_of(suites, "b")) == "bb"


def test_what_suites_share_is_loaded_once(suites):
    one, _ = find_script("vv_checks", roots_of(suites, "a"))
    two, _ = find_script("vv_checks", roots_of(suites, "b"))
    assert one is not two
    assert one.vv_shared is two.vv_shared


def test_a_module_found_again_is_the_same(suites):
    one, _ = find_script("vv_helpers", roots_of(suites, "a"))
    find_script("vv_helpers", roots_of(suites, "b"))
    two, _ = find_script("vv_checks", roots_of(suites, "a"))
    assert two.vv_helpers is one


def test_the_path_is_as_before(suites):
    before = list(sys.path)
    find_script("vv_checks", roots_of(suites, "a"))
    with pytest.raises(ValueError):
        find_script("vv_checks.nobody", roots_of(suites, "a"))
    assert sys.path == before


def test_a_late_import_of_an_ambiguous_name_fails_rather_than_finds_the_wrong_module(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vv_twice.py").write_text(f"NAME = {name!r}")
        (tmp_path / name / "vv_late.py").write_text("def who():\n import vv_twice\n return vv_twice.NAME")
        find_script("vv_twice", [str(tmp_path / name)])
        if name == "a":
            assert call("vv_late.who", [str(tmp_path / "a")]) == "a"
    for name in ("a", "b"):
        with pytest.raises(ModuleNotFoundError):
            call("vv_late.who", [str(tmp_path / name)])


def test_a_script_may_have_the_name_of_a_loaded_module_without_replacing_it(tmp_path):
    import colorsys

    (tmp_path / "colorsys.py").write_text("def check(): return 'mine'")
    assert call("colorsys.check", [str(tmp_path)]) == "mine"
    assert sys.modules["colorsys"] is colorsys
    (tmp_path / "vv_other.py").write_text("def check(): return 'other'")
    assert call("vv_other.check", [str(tmp_path)]) == "other"
    assert sys.modules["colorsys"] is colorsys


def test_an_installed_module_is_found_last(tmp_path):
    module, function = find_script("os.path:basename", [str(tmp_path)])
    assert function is module.basename


def test_built_in_modules_have_no_file_and_no_surprise():
    with pytest.raises(ValueError, match="there is no sys"):
        find_script("sys:nothing_there", [])


def test_a_missing_script_names_each_folder_once(tmp_path):
    with pytest.raises(ValueError, match=rf"there is no vv_none\.py in {tmp_path}$"):
        find_script("scripts:vv_none", (str(tmp_path), f"{tmp_path}/."))
