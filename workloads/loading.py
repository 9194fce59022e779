"""Loads a workload by its name: a built-in class, or a class or function in the user's own files.

User files are imported under a private package of their own, so that a user's folder named ``api`` or ``workloads``
neither hides ours nor is hidden by it. This separates names; it does not protect anything: the user's code runs with
our rights.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from zlib import crc32

from scamp.workload.seeds import (
    DATA_SEED,
    HostStates,
    host_states,
    kept_generators,
    kept_over_imports,
    restore_host,
    seed_host,
)
from workloads.function import FunctionWorkload
from workloads.protocol import BATCHES, Workload, defines
from workloads.refusals import WorkloadError, explain

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BUILT_INS: Mapping[str, str] = {
    "stdlib_gpt": "workloads.models.stdlib_gpt:StdlibGpt",
    "unet3d_blobs": "workloads.models.unet3d_blobs:Unet3dBlobs",
    "vit_digits": "workloads.models.vit_digits:VitDigits",
    "vit_digits_with_fault": "workloads.models.vit_digits_with_fault:VitDigitsWithFault",
}
PRIVATE = "scamp_user_"
"""Beginning of the names of the packages that have users' files."""


def load_workload(name: str, code_dir: Path | None) -> type[Workload]:
    """The workload class called ``name``: a built-in one such as ``vit_digits``, or ``path/to/file.py:Class``.

    The path is relative to ``code_dir``. User files are imported once per process and ``code_dir``: the folder of a
    study does not change. Raises ``WorkloadError``.
    """
    module, class_name = _find(name, code_dir)
    return _workload_class(module, class_name, name)


def load_attribute(name: str, code_dir: Path) -> Any:
    """The object ``path/to/file.py:name`` in the user's files. Raises ``WorkloadError``."""
    module, attribute = _find(name, code_dir)
    if not hasattr(module, attribute):
        raise WorkloadError(f"{name}: the file defines no {attribute}; check the name after the colon")
    return getattr(module, attribute)


def load_estimable(name: str, code_dir: Path | None) -> Callable[[Mapping[str, Any]], Workload]:
    """A callable that makes a workload from parameters: a class, or ``FILE.py:function`` (see ``workloads.function``).

    Raises ``WorkloadError``.
    """
    module, attribute = _find(name, code_dir)
    workload = getattr(module, attribute, None)
    return (
        partial(FunctionWorkload, workload)
        if inspect.isfunction(workload)
        else _workload_class(module, attribute, name)
    )


def _find(name: str, code_dir: Path | None) -> tuple[ModuleType, str]:
    """The module that contains ``name``, and the attribute's name in it."""
    file, _, attribute = name.rpartition(":")
    if not file:
        if name not in BUILT_INS:
            raise WorkloadError(
                f"there is no built-in workload {name!r}: choose from {', '.join(BUILT_INS)}, "
                "or name your own as FILE.py:Class"
            )
        module_name, _, attribute = BUILT_INS[name].partition(":")
        return importlib.import_module(module_name), attribute
    if code_dir is None:
        raise WorkloadError(
            f"workload {name!r} names a file, but no code was sent along with the study: submit the study where the "
            "file is, or send its folder with --working-dir"
        )
    return _import_user_file(file, code_dir.resolve()), attribute


def _workload_class(module: ModuleType, class_name: str, name: str) -> type[Workload]:
    class_ = getattr(module, class_name, None)
    if class_ is None:
        raise WorkloadError(f"workload {name!r}: the file has no class {class_name!r}; check the name after the colon")
    if not (isinstance(class_, type) and issubclass(class_, Workload)):
        if inspect.isfunction(class_):
            advice = "a function can be estimated, but not trained"
        else:
            advice = "derive it from that class, or name another"
        raise WorkloadError(f"workload {name!r}: {class_name} is not a subclass of scamp.Workload; {advice}")
    missing = sorted(getattr(class_, "__abstractmethods__", ()))
    if not defines(class_, "dataset"):
        missing = sorted([*missing, *(method for method in BATCHES if not defines(class_, method))])
    if missing:
        instead = "; in place of batches it may define dataset" if set(BATCHES) & set(missing) else ""
        raise WorkloadError(
            f"workload {name!r}: {class_name} does not define {', '.join(missing)}; add what is missing{instead}"
        )
    return class_


def _import_user_file(file: str, code_dir: Path) -> ModuleType:
    path = (code_dir / file).resolve()
    if Path(file).is_absolute() or not path.is_relative_to(code_dir):
        raise WorkloadError(
            f"workload file {file!r} must be inside the folder of the study: give its path relative to that folder"
        )
    if path.suffix != ".py" or not path.is_file():
        raise WorkloadError(
            f"workload file {file!r} is not among the files sent along with the study: check its name, which must end "
            "in .py, or send the folder that contains it with --working-dir"
        )
    parts = path.relative_to(code_dir).with_suffix("").parts
    root = _root_of(code_dir)
    before = set(sys.modules)
    user = _UserCode.installed(root, code_dir)
    try:
        return user.load(".".join((root, *parts)))
    except (Exception, SystemExit) as error:
        for half_loaded in [key for key in set(sys.modules) - before if key.startswith(f"{root}.")]:
            del sys.modules[half_loaded]
        if isinstance(error, ModuleNotFoundError) and error.name and not _is_there(error.name):
            users = [
                at for at in traceback.extract_tb(error.__traceback__) if Path(at.filename).is_relative_to(code_dir)
            ]
            if users:
                importer = f"{Path(users[-1].filename).name}, line {users[-1].lineno},"
                raise module_not_found(error.name.removeprefix(root), importer) from error
        raise WorkloadError(explain(error, code_dir)) from error


def forget_user_code(code_dir: Path, libraries: Container[str] = ()) -> list[ModuleType]:
    """Forget the modules of the user's files in ``code_dir``, also those imported under other names; returns them.

    The next import runs the files again. Modules named in ``libraries`` are known not to be the user's.
    """
    folder = code_dir.resolve()
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not (isinstance(finder, _UserCode) and finder.folder == folder)
    ]
    root = _root_of(folder)
    files = {
        name: getattr(module, "__file__", None) or ""
        for name, module in list(sys.modules.items())
        if name not in libraries
    }
    names = [name for name, file in files.items() if name.startswith(root) or str(file).startswith(f"{folder}/")]
    return [sys.modules.pop(name) for name in names]


def can_import(name: str, level: int, importer: Mapping[str, Any]) -> bool:
    """Whether ``import name``, with ``level`` leading dots, works in the module whose globals are ``importer``.

    Only the first part of an installed package's name is looked up: to find the rest, Python would have to import it.
    """
    package = str(importer["__package__"])
    root = package.partition(".")[0]
    if level:
        name = resolve_name("." * level + name, package)
    elif user := next((u for u in sys.meta_path if isinstance(u, _UserCode) and u.root == root), None):
        within = user._package_of(name, importer)
        name = name if within is None else f"{within}.{name}"
    return _is_there(name)


def _root_of(code_dir: Path) -> str:
    """The name of the package under which the files of this folder are imported."""
    return f"{PRIVATE}{hashlib.sha256(str(code_dir).encode()).hexdigest()[:16]}"


def _is_there(name: str) -> bool:
    """Whether the user's module, or the top-level package of an installed module, can be found."""
    parts = name.split(".")
    if name.startswith(PRIVATE):
        user = next(u for u in sys.meta_path if isinstance(u, _UserCode) and u.root == parts[0])
        path = Path(user.folder, *parts[1:])
        return path.is_dir() or path.with_name(f"{path.name}.py").is_file()
    return parts[0] in sys.modules or find_spec(parts[0]) is not None


def module_not_found(name: str, importer: str) -> WorkloadError:
    """The error for a missing module; ``importer`` names the place that imports it, as the subject of a sentence."""
    if name.startswith("."):
        return WorkloadError(
            f"{importer} needs the module {name}, which is not among the files sent along: send the folder that it "
            "lies in with --working-dir"
        )
    return WorkloadError(
        f"{importer} needs the module {name}, which is neither among the files sent along nor installed where ScaMP "
        "runs. If it is your own file or folder, send the folder that it lies in with --working-dir. Otherwise install "
        "its package into ScaMP's own environment, on a cluster into the environment of every node "
        '(.venv/bin/python -m pip install …; see "Your own dependencies" in docs/workloads.md)'
    )


class _UserCode:
    """The import rules of one folder of user files: a private package whose modules find each other first.

    Python reads ``__import__`` from the ``__builtins__`` of the importing module. Every module of the folder gets our
    own ``__import__``, which looks up an absolute name in the user's files first, also for imports inside functions.
    No other module is affected.

    Some packages draw numbers while they are imported, scikit-learn from Python's own generator. A process that has
    them already must train the same curve as a new one, so the folder's code draws next what it would without that
    import. While the file of a workload is loaded, what the folder's modules draw or seed counts, as in a script; one
    that is imported later draws from a seed of its own, and leaves the generators as they were.
    """

    def __init__(self, root: str, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self.builtins = {**vars(builtins), "__import__": self._import}
        self._loading = threading.local()
        self._after: dict[str, HostStates] = {}  # file of a workload → the generators once it was loaded

    @classmethod
    def installed(cls, root: str, folder: Path) -> _UserCode:
        """The rules of this folder, which are in force from now on."""
        if root in sys.modules:
            return next(finder for finder in sys.meta_path if isinstance(finder, cls) and finder.root == root)
        package = ModuleType(root)
        package.__path__ = [str(folder)]
        sys.modules[root] = package
        sys.meta_path.insert(0, user := cls(root, folder))
        return user

    def load(self, name: str) -> ModuleType:
        """Return the module of this full name, imported at the first call.

        Each call leaves the generators in the same states: those in which the import, which has a seed of its own, left
        them.
        """
        if name in self._after:
            restore_host(self._after[name])
            return sys.modules[name]
        self._loading.is_so = True
        seed_host(DATA_SEED)
        try:
            module = importlib.import_module(name)
        finally:
            self._loading.is_so = False
        self._after[name] = host_states()
        return module

    @property
    def is_loading(self) -> bool:
        """Whether this thread loads the file of a workload."""
        return getattr(self._loading, "is_so", False)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{self.root}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _UserLoader(fullname, spec.loader.path, self)
        return spec

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 (the names that ``__import__`` has)
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = None,
        level: int = 0,
    ) -> ModuleType:
        prefix = None if level else self._package_of(name, globals or {})
        full_name = name if prefix is None else f"{prefix}.{name}"
        imported = None if level else sys.modules.get(full_name)
        is_new = imported is None or not vars(imported).keys() >= {*(fromlist or ())}
        is_script = self.is_loading and (level or prefix is not None)
        with kept_over_imports() if is_new and not is_script else nullcontext():  # it takes 0.1 ms
            if prefix is None:
                return builtins.__import__(name, globals, locals, fromlist or (), level)
            if fromlist:
                return builtins.__import__(full_name, globals, locals, fromlist)
            importlib.import_module(full_name)
            return sys.modules[f"{prefix}.{name.partition('.')[0]}"]

    def _package_of(self, name: str, importer: Mapping[str, Any]) -> str | None:
        """The user's package that contains ``name``: next to the importing file, else the top folder; None: neither."""
        beside = str(importer.get("__package__") or self.root)
        for package in dict.fromkeys((beside, self.root)):
            path = Path(self.folder, *package.split(".")[1:], *name.split("."))
            if path.with_name(f"{path.name}.py").is_file() or (path.is_dir() and any(path.glob("*.py"))):
                return package
        return None


class _UserLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, user: _UserCode) -> None:
        super().__init__(fullname, path)
        self._user = user

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._user.builtins
        if self._user.is_loading:
            super().exec_module(module)
            return
        with kept_generators():
            seed_host((DATA_SEED, crc32(module.__name__.partition(".")[2].encode())))
            super().exec_module(module)

    def set_data(self, path: str, data: ReadableBuffer, *, _mode: int = 0o666) -> None:
        """Write no bytecode files: ranks share the folder of a study and only read it."""
