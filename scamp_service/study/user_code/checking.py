"""Checks the zip of a user's own files, in the API, without importing or running them."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from scamp.user_code.bundling import MAX_CODE_BYTES, file_of
from scamp_service.errors import InvalidInput
from scamp_service.study.workload_names import check_built_in, is_file
from workloads.files.archive import ArchiveError, open_archive

MAX_SOURCE_BYTES = 2**20


def check_code(workload: str, data: bytes | None, *, functions: bool = False, sampler: str = "") -> None:
    """Check that the workload is built in and comes without files, or that it is a class in the zip ``data``.

    With ``functions`` a function is accepted too; it can be estimated, but not trained. ``sampler`` names something
    else in the user's files that must be there. Raises ``InvalidInput``.
    """
    check_built_in(workload)
    if is_file(sampler):
        _check_sampler(sampler, data)
    if not is_file(workload):
        if data is not None and not is_file(sampler):
            raise InvalidInput(f"{workload!r} is a built-in workload and takes no files; leave them out")
        return
    if data is None:
        raise InvalidInput(
            f"the workload {workload!r} is your own file; upload it: choose it on the page of a new study; `scamp "
            "submit` does so, and in Python `Client.submit` with the `Path` of the study's file, `code=` or "
            "`workload=`; over HTTP, use files or code_zip"
        )
    _check_name(workload, _read_source(workload, data), functions)


def _check_sampler(sampler: str, data: bytes | None) -> None:
    if data is None:
        raise InvalidInput(
            f"the sampler {sampler!r} is your own file; upload it: choose it on the page of a new study; `scamp "
            "submit` does so, and in Python `Client.submit` with the `Path` of the study's file or `code=`; over HTTP, "
            "use files or code_zip"
        )
    name, _, class_name = sampler.rpartition(":")
    tree = _parsed(name, _read_source(sampler, data, "sampler"))
    names = {*_top_level_names(tree.body), *(node.name for node in tree.body if isinstance(node, ast.FunctionDef))}
    if class_name not in names and "*" not in names:
        raise InvalidInput(f"{name} defines no {class_name}, which the sampler {sampler!r} names")


def _read_source(workload: str, data: bytes, role: str = "workload") -> bytes:
    """The content of the workload's file. The archive is checked by its directory, and only this file is unpacked."""
    name = file_of(workload)
    if len(data) > MAX_CODE_BYTES:
        raise InvalidInput(f"the zip of your files is larger than {MAX_CODE_BYTES >> 20} MiB")
    try:
        with open_archive(data) as archive:
            if name not in archive.namelist():
                raise InvalidInput(f"your files have no {name}, which the {role} {workload!r} names")
            with archive.open(name) as file:
                source = file.read(MAX_SOURCE_BYTES + 1)
    except ArchiveError as error:
        raise InvalidInput(str(error)) from None
    if len(source) > MAX_SOURCE_BYTES:
        raise InvalidInput(f"{name} is larger than 1 MiB; name a smaller file that imports the rest")
    return source


def _parsed(name: str, source: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():  # invalid escapes in the user's code are not our concern
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as error:
        where = f"{name}, line {error.lineno}," if error.lineno else name
        raise InvalidInput(f"{where} is not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidInput(f"{name} is not valid Python: {error or 'nested too deeply'}") from None


def _check_name(workload: str, source: bytes, functions: bool) -> None:
    name, _, attribute = workload.rpartition(":")
    tree = _parsed(name, source)
    names = set(_top_level_names(tree.body))
    is_function = attribute in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if attribute in names or "*" in names or (functions and is_function):
        return
    hint = "; a function can be estimated (scamp estimate), but not trained" if is_function else ""
    kind = "class or function" if functions else "class"
    raise InvalidInput(f"{name} defines no {kind} {attribute}, which the workload {workload!r} names{hint}")


def _top_level_names(body: list[ast.stmt]) -> Iterator[str]:
    """Names that the module may define by class, import or assignment, also under ``if``, ``try`` and ``with``."""
    for statement in body:
        match statement:
            case ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)
            case ast.Assign(targets=targets):
                yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If() | ast.Try() | ast.With():
                for field in ("body", "orelse", "finalbody"):
                    yield from _top_level_names(getattr(statement, field, []))
                for handler in getattr(statement, "handlers", []):
                    yield from _top_level_names(handler.body)
