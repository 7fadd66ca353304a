"""Lines of label files, which name the images of val and their classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcrbnn.data.image_files.image_folder import find_image_folder
from lcrbnn.errors import InputError
from tests.data.image_folders import (
    CLASSES,
    encode_image,
    make_image_files,
    make_smooth_image,
    select_split,
    write_folder,
)


@pytest.mark.parametrize("separator", [",", " ", "\t"])
def test_class_names_can_contain_spaces(tmp_path: Path, separator: str) -> None:
    images = {name: encode_image(make_smooth_image(8, 8, 1), "PNG") for name in ("a.png", "b.png", "c.png")}
    files = {f"train/{cls}/{name}": content for cls in ("hot", "hot dog", "cold") for name, content in images.items()}
    files |= {f"val/{name}": content for name, content in images.items()}
    lines = [separator.join(pair) for pair in (("a.png", "hot dog"), ("b.png", "hot"), ("c.png", "cold 0 3 4"))]
    write_folder(files | {"val_labels.txt": "\n".join(lines).encode()}, tmp_path)
    image_folder = find_image_folder(tmp_path)
    assert [image_folder.classes[i] for i in image_folder.test.labels] == ["hot dog", "hot", "cold"]
    (tmp_path / "val_labels.txt").write_text("a.png hotter\n")
    with pytest.raises(
        InputError, match=r"a line must be the name of an image and its class, once per image; got 'a\.png hotter'"
    ):
        find_image_folder(tmp_path)


def write_labelled_folder(
    folder: Path, names: tuple[str, ...], lines: tuple[str, ...], classes: tuple[str, ...] = ("a", "b")
) -> Path:
    """Write an image folder with these image names in val, and a label file with these lines."""
    content = encode_image(make_smooth_image(8, 8, 1), "PNG")
    files = {f"train/{cls}/{i}.png": content for cls in classes for i in range(2)} | {
        f"val/{name}": content for name in names
    }
    return write_folder(files | {"val_labels.txt": "\n".join(lines).encode()}, folder)


LABEL_FILES: dict[
    str, tuple[tuple[str, ...], tuple[str, ...], list[str]]
] = {  # names of images, lines, expected classes
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


@pytest.mark.parametrize("case", LABEL_FILES)
def test_image_names_can_contain_separators(tmp_path: Path, case: str) -> None:
    names, lines, expected_classes = LABEL_FILES[case]
    names = tuple(name if "." in name else f"{name}.bmp" for name in names)
    image_folder = find_image_folder(write_labelled_folder(tmp_path, names, lines))
    classes = {
        image_folder.test.relative_name(i): image_folder.classes[label]
        for i, label in enumerate(image_folder.test.labels)
    }
    assert classes == {f"val/{name}": class_name for name, class_name in zip(names, expected_classes, strict=True)}


def test_a_tab_resolves_ambiguous_names(tmp_path: Path) -> None:
    """Without a tab, the longer of two image names that fit the line is used."""
    names, classes = ("x.bmp", "x.bmp y.bmp"), ("y.bmp z", "z")
    image_folder = find_image_folder(
        write_labelled_folder(tmp_path / "tab", names, ("x.bmp\ty.bmp z", "x.bmp y.bmp\tz"), classes)
    )
    assert [image_folder.classes[i] for i in image_folder.test.labels] == ["y.bmp z", "z"]
    with pytest.raises(InputError, match=r"x\.bmp cannot be used: the label file does not name it"):
        find_image_folder(write_labelled_folder(tmp_path / "blank", names, ("x.bmp y.bmp z",), classes))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("b 494.bmp\tc",), r"got 'b 494\.bmp\\tc': no class of train follows a tab, space or comma in it$"),
        (("b 494.bmp",), r"got 'b 494\.bmp': no class of train follows"),
        (("b 494.bmp a", "b 494.bmp\tb"), r"got 'b 494\.bmp\\tb': an earlier line names 'b 494\.bmp'$"),
    ],
)
def test_an_invalid_line_is_rejected_with_the_reason(tmp_path: Path, lines: tuple[str, ...], reason: str) -> None:
    with pytest.raises(
        InputError,
        match=rf"val_labels\.txt: a line must be the name of an image and its class, once per image; {reason}",
    ):
        find_image_folder(write_labelled_folder(tmp_path, ("b 494.bmp",), lines))


def test_a_label_file_can_contain_paths_and_a_byte_order_mark(tmp_path: Path) -> None:
    files = make_image_files(train=4, val=1)
    val_files = {f"val/{c}-side/1.png": files[f"val/{c}/000.JPEG"] for c in CLASSES}
    text = "\ufeff" + "".join(f"{c}-side/1.png {c}\n" for c in CLASSES)
    root = write_folder({**select_split(files, "train"), **val_files, "val_labels.txt": text.encode()}, tmp_path)
    assert find_image_folder(root).test.labels.tolist() == list(range(len(CLASSES)))
