"""Turns a class that has no file, such as one of a notebook, into a zip that a study can name like a user's file.

The class is pickled by value, with the functions, classes and values that it refers to. The pickle is read where users'
files are imported, and nowhere else. It can be read by the same version of Python only.
"""

from __future__ import annotations

import keyword
import pickletools
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from scamp.errors import InvalidInput
from scamp.user_code.bundling import zip_files

VERSION = sys.version_info[:2]
_MODULE = '''"""The class {name}, which was sent by value: it is in sent.pkl."""

import pickle
import sys
from pathlib import Path

if sys.version_info[:2] != {version}:
    here = ".".join(map(str, sys.version_info[:2]))
    raise RuntimeError(
        f"{name} was sent from Python {dotted}, and ScaMP runs Python {{here}}: send it from Python {{here}}, or put "
        "it into a file"
    )
{name} = pickle.loads(Path(__file__).with_name("sent.pkl").read_bytes())
{name}.__module__ = __name__
'''


def bundle_class(workload: type) -> tuple[str, bytes]:
    """The name by which a study names ``workload``, and the zip that is uploaded with the study.

    Its own module is sent too if it is not a notebook or script; other modules must be installed where ScaMP runs.
    Raises ``InvalidInput`` for what is not a class, or cannot be sent.
    """
    if not isinstance(workload, type) or not workload.__name__.isidentifier() or keyword.iskeyword(workload.__name__):
        raise InvalidInput(f"the workload must be a class, a subclass of scamp.Workload; got {workload!r}")
    name = workload.__name__
    text = _MODULE.format(name=name, version=tuple(VERSION), dotted=".".join(map(str, VERSION)))
    data = _pickled(workload)
    # Which parameters a class reads is also looked up in the text of its files.
    words = {arg for _, arg, _ in pickletools.genops(data) if isinstance(arg, str)}
    with tempfile.TemporaryDirectory(prefix="scamp-class-") as folder:
        files = {"sent.py": text.encode(), "sent.pkl": data, "sent.txt": "\n".join(sorted(words)).encode()}
        for file, content in files.items():
            Path(folder, file).write_bytes(content)
        return f"sent.py:{name}", zip_files(Path(folder), sorted(files))


def _pickled(workload: type) -> bytes:
    import cloudpickle  # imported late, as few submissions need it

    module = sys.modules.get(workload.__module__)
    with ExitStack() as stack:
        if module is not None and module.__name__ != "__main__":
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            return bytes(cloudpickle.dumps(workload))
        except Exception as error:  # any kind: whatever the class refers to decides how it is pickled
            raise InvalidInput(
                f"{workload.__name__} cannot be sent, because something that it refers to cannot be pickled "
                f"({type(error).__name__}: {error}): make it in the constructor or in dataset instead"
            ) from error
