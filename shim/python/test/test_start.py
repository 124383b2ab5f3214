# SPDX-License-Identifier: Apache-2.0
"""The start of a program with us on PYTHONPATH: all else is as without."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
import zipfile

from room import INJECT, PACKAGE, STANDIN

# What Python would have run, by name; "" is none.
OTHERS = {
    "none": None,
    "plain": "import sys\nsys.mark = __name__, __file__.rpartition('/')[2], sys.modules['sitecustomize'].__dict__ is globals()\n",
    "changes the path": "import sys\nsys.path.insert(0, '/somewhere')\nsys.mark = len(sys.path)\n",
    "replaces the path": "import sys\nsys.path = ['/elsewhere'] + sys.path\nsys.mark = 1\n",
    "raises": "raise RuntimeError('mine')\n",
    "lacks a module": "import there_is_no_such_module\n",
    "ImportError": "raise ImportError('mine')\n",
    "leaves": "raise SystemExit(7)\n",
    "interrupts": "raise KeyboardInterrupt\n",
    "prints": "import sys\nprint('out')\nprint('err', file=sys.stderr)\n",
    "is not Python": "this is no Python\n",
    # As other injectors do: it takes itself off the path and runs the next one.
    "chains": textwrap.dedent(
        """
        import os, sys
        here = os.path.dirname(__file__)
        sys.path.remove(here)
        ours = sys.modules.pop("sitecustomize")
        try:
            import sitecustomize
            sys.mark = "next"
        except ImportError as e:
            sys.mark = str(e), e.name
        sys.path.insert(0, here)
        sys.modules["sitecustomize"] = ours
        """
    ),
}

ASK = """
import sys
try:
    import sitecustomize
    found = sitecustomize.__file__
except ImportError as e:
    found = str(e)
print(found, getattr(sys, "mark", None), [p for p in sys.path if p], sorted(sys.modules))
"""


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="heapwire-start-")
        self.addCleanup(shutil.rmtree, self.folder)
        with open(INJECT) as f:
            self.ours = self.make("ours", {"sitecustomize.py": f.read()})
        os.symlink(os.path.join(PACKAGE, "heapwire"), os.path.join(self.ours, "heapwire"))

    def make(self, name, files):
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        for file, text in files.items():
            with open(os.path.join(folder, file), "w") as f:
                f.write(text)
        return folder

    def run_python(self, path, *arguments, preload=True, **variables):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("HEAPWIRE", "PYTHON", "STANDIN"))}
        env.pop("LD_PRELOAD", None)
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        if path:
            env["PYTHONPATH"] = os.pathsep.join(path)
        if preload:
            # A library without any effect, for the name: what is in it is asked later.
            env["LD_PRELOAD"] = "libm.so.6"
        env.update(variables)
        done = subprocess.run(
            [sys.executable] + list(arguments), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, cwd=self.folder
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def same(self, with_us, without):
        """Both the same, but for our entry on the path and our frames, and the import's, in tracebacks."""
        code, out, err = with_us
        for quoted in ("'%s', " % self.ours, ", '%s'" % self.ours):
            out = out.replace(quoted, "")

        def pruned(text):
            return re.sub(r'  File "(<frozen importlib|[^"]*/ours/sitecustomize\.py).*\n(    .*\n)*', "", text)

        self.assertEqual((code, out, pruned(err)), (without[0], without[1], pruned(without[2])))


class Start(Program):
    def test_the_next_one_runs_as_it_would_without_us(self):
        for i, (name, text) in enumerate(OTHERS.items()):
            other = self.make("other%d" % i, {} if text is None else {"sitecustomize.py": text})
            for preload in (False, True):
                with self.subTest(other=name, preload=preload):
                    without = self.run_python([other], "-c", ASK, preload=preload)
                    self.same(self.run_python([self.ours, other], "-c", ASK, preload=preload), without)

    def test_an_injector_before_us(self):
        chains = self.make("chains", {"sitecustomize.py": OTHERS["chains"]})
        last = self.make("last", {"sitecustomize.py": "import sys\nsys.last = 1\n"})
        ask = "import sys; print(sys.mark, getattr(sys, 'last', 0), [type(f).__name__ for f in sys.meta_path if hasattr(f, 'heapwire')])"
        self.assertEqual(self.run_python([chains, self.ours, last], "-c", ask), (0, "next 1 ['_Stub']\n", ""))
        # Distributions have one of their own, in the standard library.
        code, out, err = self.run_python([chains], "-c", ask)
        self.assertEqual(self.run_python([chains, self.ours], "-c", ask), (code, out.replace("[]", "['_Stub']"), err))

    def test_two_of_us_are_one(self):
        link = os.path.join(self.folder, "link")
        os.symlink(self.ours, link)
        ask = "import sys; print(len([f for f in sys.meta_path if hasattr(f, 'heapwire')]), sys.path.count(%r))" % self.ours
        for path in ([self.ours, self.ours], [self.ours, link], [self.ours + "/"]):
            self.assertEqual(self.run_python(path, "-c", ask), (0, "1 1\n", ""))

    def test_what_ignores_the_path_ignores_us(self):
        ask = "import sys; print([f for f in sys.meta_path if hasattr(f, 'heapwire')])"
        for flag in ("-I", "-E", "-S"):
            self.assertEqual(self.run_python([self.ours], flag, "-c", ask), (0, "[]\n", ""))

    def test_nothing_is_watched_without_the_library_or_when_switched_off(self):
        ask = "import sys; print(len([f for f in sys.meta_path if hasattr(f, 'heapwire')]))"
        self.assertEqual(self.run_python([self.ours], "-c", ask), (0, "1\n", ""))
        self.assertEqual(self.run_python([self.ours], "-c", ask, preload=False), (0, "0\n", ""))
        for off in ("off", "0", "No", "FALSE"):
            self.assertEqual(self.run_python([self.ours], "-c", ask, HEAPWIRE_TORCH=off), (0, "0\n", ""))

    def test_the_start_imports_nothing(self):
        ask = "import sys; print(sorted(sys.modules))"
        self.assertEqual(self.run_python([self.ours], "-c", ask), self.run_python([], "-c", ask))

    def test_the_library_is_asked_when_torch_is_imported(self):
        # Of a process that is not profiled nothing is touched, and the watch ends.
        ask = textwrap.dedent(
            """
            import sys, torch
            torch.empty(1)
            print(torch.counts, len(torch.optim.optimizer._global_optimizer_post_hooks), [f for f in sys.meta_path if hasattr(f, 'heapwire')])
            """
        )
        self.assertEqual(
            self.run_python([self.ours, STANDIN], "-c", ask), (0, "{'initialised': ['cuda'], 'recorded': [], 'observers': 0} 0 []\n", "")
        )

    def test_what_a_pth_file_has_imported_already(self):
        # site runs .pth files before sitecustomize.
        code = textwrap.dedent(
            """
            import sys, torch
            sys.path.insert(0, %r)
            try:
                import sitecustomize
            except ImportError as e:
                assert e.name == "sitecustomize"
            print("heapwire._arm" in sys.modules, "torch_npu" in sys.modules, [p for p in sys.path if p == %r])
            """
        ) % (self.ours, self.ours)
        expected = "True False ['%s']\n" % self.ours
        self.assertEqual(self.run_python([STANDIN], "-S", "-c", code), (0, expected, ""))


WATCHED = """
import sys
told = None
if %(watch)r:
    sys.path.insert(0, %(package)r)
    from heapwire import _watch
    sys.path.remove(%(package)r)
    watcher = _watch.Finder()
    told = []
    watcher.loaded = lambda name: told.append(name)
    sys.meta_path.insert(0, watcher)
"""


class Imports(Program):
    """What a program sees of the import of a watched module: what it would see without us."""

    def both(self, code, path, told):
        results = []
        for watch in (False, True):
            head = WATCHED % {"package": PACKAGE, "watch": watch}
            # -S: what the machine has installed is not to be found.
            results.append(self.run_python(path, "-S", "-c", head + textwrap.dedent(code) + "\nprint('told', told)\n"))
        self.assertEqual(results[0][1].replace("told None", "told %r" % (told,)), results[1][1], results[1][2])
        self.assertEqual((results[0][0], results[0][2]), (results[1][0], results[1][2]))
        self.assertEqual(results[1][0], 0, results[1][2])

    LOOKS = """
    import importlib, importlib.util
    spec = importlib.util.find_spec("torch")
    print(type(spec.loader), spec.origin, spec.submodule_search_locations)
    import torch
    print(type(torch.__loader__), torch.__spec__.name, torch.__spec__.loader.__dict__, torch.__file__, torch.__path__, torch.__cached__)
    print(torch.__loader__.get_source("torch")[:40])
    """

    def test_a_package_in_a_folder(self):
        self.both(self.LOOKS, [STANDIN], ["torch"])

    def test_a_package_in_a_zip(self):
        archive = os.path.join(self.folder, "torch.zip")
        with zipfile.ZipFile(archive, "w") as z:
            for folder, _, files in os.walk(STANDIN):
                for file in files:
                    if file.endswith(".py"):
                        path = os.path.join(folder, file)
                        z.write(path, os.path.relpath(path, STANDIN))
        self.both(
            """
            import torch, torch_npu, torch.cuda.memory
            print(torch.__loader__.__dict__.keys(), torch.__file__, torch.__spec__.origin)
            """,
            [archive],
            ["torch", "torch_npu"],
        )

    def test_a_reload(self):
        self.both("import torch, importlib\nprint(importlib.reload(torch) is torch)", [STANDIN], ["torch", "torch"])

    def test_one_within_the_other(self):
        self.both("import os\nos.environ['STANDIN_AUTOLOAD'] = '1'\nimport torch\nprint(torch.npu)", [STANDIN], ["torch_npu", "torch"])

    def test_no_such_module(self):
        self.both("try:\n    import torch\nexcept ImportError as e:\n    print(repr(e), e.name, e.path)", [], [])

    def test_a_folder_of_that_name(self):
        os.makedirs(os.path.join(self.folder, "n", "torch"))
        self.both("import torch\nprint(torch.__path__, torch.__spec__.loader is None)", [os.path.join(self.folder, "n")], [])

    def test_one_that_fails_and_succeeds_later(self):
        self.make("f", {"torch.py": "import sys\nif not hasattr(sys, 'again'):\n    sys.again = 1\n    raise ImportError('first')\n"})
        self.both(
            """
            try:
                import torch
            except ImportError as e:
                print(e, "torch" in sys.modules)
            import torch
            print(torch)
            """,
            [os.path.join(self.folder, "f")],
            ["torch"],
        )

    def test_a_lazy_loader(self):
        self.both(
            """
            import importlib.util
            spec = importlib.util.find_spec("torch")
            spec.loader = importlib.util.LazyLoader(spec.loader)
            module = importlib.util.module_from_spec(spec)
            sys.modules["torch"] = module
            spec.loader.exec_module(module)
            print(type(module).__name__)
            print(module.__version__, type(module).__name__)
            """,
            [STANDIN],
            ["torch"],
        )

    def test_finders_of_others(self):
        for where in ("0", "len(sys.meta_path)", "1"):
            for body in (
                "return None",
                # As wrapt and others do: they ask everybody, themselves left out, and hand the result on.
                "\n        if self.busy or name != 'torch': return None\n        self.busy = True\n"
                "        try: return importlib.util.find_spec(name)\n        finally: self.busy = False",
                # As ours does: it asks the others, one by one.
                "\n        others = [f for f in sys.meta_path if f is not self and name == 'torch']\n"
                "        return next(filter(None, (f.find_spec(name, None, None) for f in others)), None)",
                "\n        if name == 'torch': raise ImportError('not here')",
            ):
                self.both(
                    """
                    import importlib.util
                    class Finder:
                        busy = False
                        seen = []
                        def find_spec(self, name, path=None, target=None):
                            self.seen.append(name)
                            return self.find(name)
                        def find(self, name): %s
                    sys.meta_path.insert(%s, Finder())
                    try:
                        import torch
                        print(torch, "torch" in Finder.seen)
                    except ImportError as e:
                        print(e)
                    """
                    .replace("\n                    ", "\n")
                    % (body, where),
                    [STANDIN],
                    [] if "raise" in body and not (where == "len(sys.meta_path)") else ["torch"],
                )

    def test_a_finder_of_long_ago(self):
        if sys.version_info >= (3, 12):
            self.skipTest("find_module has gone")
        self.both(
            """
            import warnings
            warnings.simplefilter("ignore")
            class Old:
                def find_module(self, name, path=None):
                    return self if name == "torch" else None
                def load_module(self, name):
                    import types
                    sys.modules[name] = types.ModuleType(name, "of old")
                    return sys.modules[name]
            sys.meta_path.insert(1, Old())
            import torch
            print(torch.__doc__)
            """,
            [STANDIN],
            [],
        )

    def test_threads(self):
        self.both(
            """
            import threading
            ready = threading.Barrier(4)
            got = []
            def go():
                ready.wait(60)
                import torch
                got.append(torch.__version__)
            threads = [threading.Thread(target=go) for _ in range(4)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            print(got)
            """,
            [STANDIN],
            ["torch"],
        )


if __name__ == "__main__":
    unittest.main()
