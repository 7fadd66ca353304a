"""A file of labels beside a val without class folders: what its lines may say, and how they are understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcrbnn.data.tree import find_tree
from lcrbnn.errors import InputError
from tests.data.trees import as_folder, encoded, smooth


@pytest.mark.parametrize("separator", [",", " ", "\t"])
def test_classes_with_spaces_are_told_apart_by_a_file_of_labels(tmp_path: Path, separator: str) -> None:
    pictures = {name: encoded(smooth(8, 8, 1), "PNG") for name in ("a.png", "b.png", "c.png")}
    files = {f"train/{cls}/{name}": one for cls in ("hot", "hot dog", "cold") for name, one in pictures.items()}
    files |= {f"val/{name}": one for name, one in pictures.items()}
    lines = [separator.join(pair) for pair in (("a.png", "hot dog"), ("b.png", "hot"), ("c.png", "cold 0 3 4"))]
    as_folder(files | {"val_labels.txt": "\n".join(lines).encode()}, tmp_path)
    tree = find_tree(tmp_path)
    assert [tree.classes[i] for i in tree.test.labels] == ["hot dog", "hot", "cold"]
    (tmp_path / "val_labels.txt").write_text("a.png hotter\n")
    with pytest.raises(InputError, match=r"a line is the name of an image, once, and its class; got 'a\.png hotter'"):
        find_tree(tmp_path)


def labelled(top: Path, names: tuple[str, ...], lines: tuple[str, ...], classes: tuple[str, ...] = ("a", "b")) -> Path:
    """A tree with these names in val, and its file of labels."""
    one = encoded(smooth(8, 8, 1), "PNG")
    files = {f"train/{cls}/{i}.png": one for cls in classes for i in range(2)} | {f"val/{name}": one for name in names}
    return as_folder(files | {"val_labels.txt": "\n".join(lines).encode()}, top)


BLANKS: dict[str, tuple[tuple[str, ...], tuple[str, ...], list[str]]] = {  # names of images, lines, classes found
    "tab": (("b 494.bmp", "c.bmp"), ("b 494.bmp\ta", "c.bmp\tb"), ["a", "b"]),
    "blank": (("b 494.bmp", "c.bmp"), ("b 494.bmp a", "c.bmp b 0 1"), ["a", "b"]),
    "comma": (("b, 494.bmp", "c.bmp"), ("b, 494.bmp,a", "c.bmp,b"), ["a", "b"]),
    "blanks around a tab": (("b 494.bmp",), ("  b 494.bmp \t  a \t3 ",), ["a"]),
    "a tab after the class": (("b 494.bmp", "c.bmp"), ("b 494.bmp a\t0", "c.bmp b\t0\t1"), ["a", "b"]),
    "without its ending": (("b 494.bmp",), ("b 494 a",), ["a"]),
    "a folder too": (("x y/b 494.bmp",), ("x y/b 494.bmp b",), ["b"]),
    "its folder left out": (("x y/b 494.bmp",), ("b 494.bmp b",), ["b"]),
    "the longest name counts": (("b", "b a.bmp"), ("b a.bmp a", "b b"), ["b", "a"]),
    "a name that begins like the head": (("ImageId 1.bmp",), ("ImageId 1.bmp b",), ["b"]),
    "a head, and an image that is not there": (("b 1.bmp",), ("ImageId,Class", "gone.bmp a", "b 1.bmp b"), ["b"]),
}


@pytest.mark.parametrize("case", BLANKS)
def test_a_file_of_labels_names_images_with_blanks(tmp_path: Path, case: str) -> None:
    names, lines, wanted = BLANKS[case]
    names = tuple(name if "." in name else f"{name}.bmp" for name in names)
    tree = find_tree(labelled(tmp_path, names, lines))
    found = {tree.test.inside(i): tree.classes[label] for i, label in enumerate(tree.test.labels)}
    assert found == {f"val/{name}": one for name, one in zip(names, wanted, strict=True)}


def test_a_tab_says_what_blanks_leave_open(tmp_path: Path) -> None:
    """Of two images and two classes, a line with blanks can mean both; the longer name counts, unless a tab ends it."""
    names, classes = ("x.bmp", "x.bmp y.bmp"), ("y.bmp z", "z")
    tree = find_tree(labelled(tmp_path / "tab", names, ("x.bmp\ty.bmp z", "x.bmp y.bmp\tz"), classes))
    assert [tree.classes[i] for i in tree.test.labels] == ["y.bmp z", "z"]
    with pytest.raises(InputError, match=r"x\.bmp cannot be used: the file of labels does not name it"):
        find_tree(labelled(tmp_path / "blank", names, ("x.bmp y.bmp z",), classes))


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (("b 494.bmp\tc",), r"got 'b 494\.bmp\\tc': no class of train follows a tab, blank or comma in it$"),
        (("b 494.bmp",), r"got 'b 494\.bmp': no class of train follows"),
        (("b 494.bmp a", "b 494.bmp\tb"), r"got 'b 494\.bmp\\tb': an earlier line names 'b 494\.bmp'$"),
    ],
)
def test_a_line_of_labels_is_refused_with_the_reason(tmp_path: Path, lines: tuple[str, ...], why: str) -> None:
    with pytest.raises(
        InputError, match=rf"val_labels\.txt: a line is the name of an image, once, and its class; {why}"
    ):
        find_tree(labelled(tmp_path, ("b 494.bmp",), lines))
