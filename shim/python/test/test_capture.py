# SPDX-License-Identifier: Apache-2.0
"""Snapshots: when one is taken, what is in it, what is left alone."""

import os
import pickletools
import stat
import sys
import threading
import unittest

from room import room, run_out

VERSIONS = [("torch", "2.0"), ("torch", "2.1"), ("torch", "2.6"), ("torch", "2.12"), ("torch", "2.14"), ("torch_npu", "2.1"), ("torch_npu", "2.6")]


def versions(test):
    """The test, with each stand-in: (self, room's arguments, device kind)."""

    def each(self):
        for package, version in VERSIONS:
            kind = "cuda" if package == "torch" else "npu"
            variable = "STANDIN_TORCH" if package == "torch" else "STANDIN_NPU"
            with self.subTest(package=package, version=version):
                test(self, {"package": package, variable: version}, kind)

    each.__name__ = test.__name__
    return each


class OutOfMemory(unittest.TestCase):
    @versions
    def test_a_refused_request_leaves_a_snapshot(self, how, kind):
        with room(RANK="3", **how) as r:
            device = kind + ":1"
            kept = r.torch.empty(600 << 20, device)
            run_out(r.torch, device, 600 << 20)
            name = "000001.oom." + kind
            self.assertEqual(r.names(), [name + ".json", name + ".pickle"])
            for file in r.names():
                self.assertEqual(stat.S_IMODE(os.stat(os.path.join(r.folder, file)).st_mode), 0o600)
            got = r.only()
            self.assertEqual(got["schema"], 1)
            self.assertEqual((got["reason"], got["device"], got["device_kind"]), ("oom", device, kind))
            self.assertEqual((got["requested_bytes"], got["total_bytes"]), (600 << 20, 1 << 30))
            self.assertEqual(got["free_bytes"], (1 << 30) - (600 << 20))
            self.assertEqual((got["rank"], got["oom_count"]), (3, 1))
            for absent in ("limit_bytes", "skipped", "after_unwinding", "error", "step", "window"):
                self.assertNotIn(absent, got)
            line = next(s for s in got["python_stack"] if s.startswith("run_out "))
            self.assertRegex(line, r"^run_out .*room\.py:\d+$")
            self.assertLess(got["python_stack"].index(line), len(got["python_stack"]) - 1)
            self.assertFalse([s for s in got["python_stack"] if "/heapwire/_" in s])
            self.assertEqual(got["memory_stats"][device]["num_ooms"], 1)
            self.assertEqual(got["memory_stats"][device]["allocated_bytes.all.current"], 600 << 20)
            history = got["history"]
            self.assertEqual((history["enabled"], history["by"], history["stacks"]), (True, "heapwire", "python"))
            self.assertEqual((history["max_entries"], history["overflowed"]), (100000, False))
            tree = r.tree(name)
            entry = tree["device_traces"][1][-1]
            self.assertEqual(entry["action"], "oom")
            self.assertIn("run_out", [f["name"] for f in entry["frames"]])
            self.assertEqual(history["entries"], {device: len(tree["device_traces"][1])})
            self.assertEqual(sum(s["total_size"] for s in tree["segments"]), 600 << 20)
            with open(os.path.join(r.folder, name + ".pickle"), "rb") as f:
                self.assertEqual(next(pickletools.genops(f))[1], 4)
            self.assertEqual(r.heapwire.status()["errors"], [])
            del kept

    @versions
    def test_no_device_is_initialised_and_nothing_attached_before_the_program_does(self, how, kind):
        with room(**how) as r:
            self.assertEqual(r.torch.counts, {"initialised": [], "recorded": [], "observers": 0})
            self.assertFalse(r.heapwire.snapshot("early"))
            self.assertEqual(r.torch.counts["initialised"], [])
            r.torch.empty(1, kind + ":0")
            self.assertEqual(r.torch.counts["initialised"], [kind])
            self.assertEqual(r.torch.counts["observers"], 1)

    def test_the_json_is_there_before_the_pickle(self):
        with room() as r:
            from heapwire import _files

            order, rename = [], os.rename
            seen = []

            def noted(a, b):
                order.append(os.path.splitext(b)[1])
                seen.append(r.names())
                rename(a, b)

            _files.os = type(os)("os")
            _files.os.__dict__.update(os.__dict__)
            _files.os.rename = noted
            run_out(r.torch)
            self.assertEqual(order, [".json", ".pickle"])
            self.assertEqual(seen[0], [".000001.json.tmp", ".000001.pickle.tmp"])

    def test_a_limit_of_the_process_is_told_from_the_devices_memory(self):
        with room() as r:
            r.torch.cuda.set_per_process_memory_fraction(0.5)
            run_out(r.torch, size=600 << 20)
            got = r.only()
            self.assertEqual((got["limit_bytes"], got["total_bytes"], got["free_bytes"]), (512 << 20, 1 << 30, 1 << 30))

    def test_a_failure_outside_the_allocator_has_no_figures(self):
        with room("torch_npu") as r:
            r.torch.empty(1, "npu:0")
            r.torch_npu._C.allocator.observers[0](0, 0, 0, 0)
            got = r.only()
            self.assertEqual(got["oom_count"], 1)
            for key in ("requested_bytes", "free_bytes", "total_bytes", "limit_bytes"):
                self.assertNotIn(key, got)

    def test_two_kinds_in_one_process(self):
        with room("torch_npu") as r:
            run_out(r.torch, "cuda:0")
            run_out(r.torch, "npu:0")
            self.assertEqual(list(r.snapshots()), ["000001.oom.cuda", "000002.oom.npu"])

    def test_from_a_thread_without_a_name_of_pythons(self):
        import _thread

        with room() as r:
            done = threading.Event()

            def elsewhere():
                try:
                    run_out(r.torch)
                finally:
                    done.set()

            before = threading.active_count()
            _thread.start_new_thread(elsewhere, ())
            self.assertTrue(done.wait(60))
            self.assertEqual(threading.active_count(), before)  # no entry for it has been made
            self.assertIn("elsewhere", " ".join(r.only()["python_stack"]))

    def test_the_collector_rests_while_the_tree_is_written(self):
        import gc

        with room() as r:
            r.torch.empty(1)
            device = r.torch.cuda.memory
            states, snapshot = [], device._snapshot
            device._snapshot = lambda: (states.append(gc.isenabled()), snapshot())[1]
            run_out(r.torch)
            self.assertEqual((states, gc.isenabled()), ([False], True))
            gc.disable()
            try:
                self.assertTrue(r.heapwire.snapshot())
                self.assertFalse(gc.isenabled())
            finally:
                gc.enable()

    def test_nothing_of_the_program_is_kept_alive(self):
        import gc
        import weakref

        with room(HEAPWIRE_TORCH_OOM_GAP="1h") as r:

            class Big:
                pass

            def fails():
                big = Big()
                refs.append(weakref.ref(big))
                run_out(r.torch)

            refs = []
            r.torch.empty(1)
            r.torch.cuda.memory._snapshot = None  # fails within us
            fails()
            fails()
            gc.collect()
            self.assertEqual([ref() for ref in refs], [None, None])


class HowOften(unittest.TestCase):
    def clock(self, r):
        """The observer's clock, in our hands."""
        from heapwire import _oom

        class Clock:
            now = 1000.0

            def monotonic(self):
                return self.now

        _oom.time = Clock()
        return _oom.time

    def test_the_first_is_taken_at_once_and_the_last_at_a_step(self):
        with room() as r:
            clock = self.clock(r)
            optimizer = r.torch.optim.SGD()
            for size in (2, 3, 4):
                run_out(r.torch, size=size << 30)
            optimizer.step()
            self.assertEqual(list(r.snapshots()), ["000001.oom.cuda"])
            clock.now += 61
            optimizer.step()
            optimizer.step()
            self.assertEqual(list(r.snapshots()), ["000001.oom.cuda", "000002.oom.cuda"])
            first, last = r.snapshots().values()
            self.assertEqual((first["requested_bytes"], first["oom_count"]), (2 << 30, 1))
            self.assertEqual((last["requested_bytes"], last["oom_count"], last["skipped"]), (4 << 30, 3, 1))
            self.assertTrue(last["after_unwinding"])
            self.assertNotIn("step", last)  # none was over when it happened
            self.assertIn("run_out", " ".join(last["python_stack"]))
            self.assertEqual([e["size"] for e in r.tree("000002.oom.cuda")["device_traces"][0]], [2 << 30, 3 << 30, 4 << 30])

    def test_the_next_one_after_the_gap_is_taken_at_once(self):
        with room(HEAPWIRE_TORCH_OOM_GAP="10s") as r:
            clock = self.clock(r)
            run_out(r.torch)
            run_out(r.torch)
            clock.now += 11
            run_out(r.torch)
            got = list(r.snapshots().values())
            self.assertEqual([g["oom_count"] for g in got], [1, 3])
            self.assertEqual(got[1]["skipped"], 1)
            self.assertNotIn("after_unwinding", got[1])

    def test_a_snapshot_that_takes_long_is_taken_seldom(self):
        with room(HEAPWIRE_TORCH_OOM_GAP="0s") as r:
            clock = self.clock(r)
            r.torch.empty(1)
            memory = r.torch.cuda.memory
            snapshot = memory._snapshot

            def slow():
                clock.now += 5
                return snapshot()

            memory._snapshot = slow
            run_out(r.torch)
            clock.now += 49
            run_out(r.torch)
            self.assertEqual(len(r.snapshots()), 1)
            clock.now += 2
            run_out(r.torch)
            self.assertEqual(len(r.snapshots()), 2)

    def test_two_threads_at_once_do_not_wait_for_each_other(self):
        with room() as r:
            r.torch.empty(1)
            memory = r.torch.cuda.memory
            snapshot = memory._snapshot
            inside, go_on, went_on = threading.Event(), threading.Event(), []

            def held():
                inside.set()
                went_on.append(go_on.wait(60))
                return snapshot()

            memory._snapshot = held
            thread = threading.Thread(target=run_out, args=(r.torch,))
            thread.start()
            self.assertTrue(inside.wait(60))
            run_out(r.torch)  # if it waited, nobody would let the other go on
            go_on.set()
            thread.join(60)
            self.assertEqual(went_on, [True])
            self.assertEqual(len(r.snapshots()), 1)
            self.assertEqual(r.heapwire.status()["devices"]["cuda"]["ooms"], 2)


class History(unittest.TestCase):
    @versions
    def test_it_is_recorded_with_a_bound_and_once(self, how, kind):
        with room(HEAPWIRE_TORCH_HISTORY="5", **how) as r:
            for _ in range(4):
                r.torch.empty(1, kind + ":0")
            r.heapwire.snapshot()
            (recorded,) = r.torch.counts["recorded"]
            self.assertEqual((recorded["max_entries"], recorded["stacks"]), (5, "python"))
            got = r.only()["history"]
            self.assertEqual((got["entries"], got["overflowed"]), ({kind + ":0": 5}, True))

    @versions
    def test_it_can_be_left_off(self, how, kind):
        with room(HEAPWIRE_TORCH_HISTORY="0", **how) as r:
            run_out(r.torch, kind + ":0")
            self.assertEqual(r.torch.counts["recorded"], [])
            self.assertEqual(r.only()["history"], {"enabled": False})

    def test_what_the_program_records_is_left_alone(self):
        for package, versions_ in (("torch", ("2.1", "2.6", "2.12")), ("torch_npu", ("2.1", "2.6"))):
            kind = "cuda" if package == "torch" else "npu"
            for version in versions_:
                with self.subTest(package=package, version=version):
                    variable = "STANDIN_TORCH" if package == "torch" else "STANDIN_NPU"
                    with room(package, **{variable: version, "HEAPWIRE_TORCH_WINDOW_STEPS": "1"}) as r:
                        allocator = sys.modules[package]._C.allocator
                        allocator.record("all", "all", "all", 7)  # before the device is used
                        r.torch.empty(1, kind + ":0")
                        r.torch.optim.SGD().step()
                        self.assertEqual((allocator.max_entries, allocator.stacks), (7, "all"))
                        self.assertEqual(r.torch.counts["recorded"], [])
                        self.assertEqual(r.only()["history"]["by"], "program")

    @versions
    def test_who_turns_it_on_later_wins(self, how, kind):
        with room(HEAPWIRE_TORCH_WINDOW_STEPS="1", HEAPWIRE_TORCH_HISTORY="3", **how) as r:
            r.torch.empty(1, kind + ":0")
            module = r.torch.cuda if kind == "cuda" else r.torch_npu.npu
            if how.get("STANDIN_TORCH") == "2.0":
                module.memory._record_memory_history(True, trace_alloc_max_entries=50, trace_alloc_record_context=True)
            else:
                module.memory._record_memory_history(max_entries=50)
            for _ in range(10):
                r.torch.empty(1, kind + ":0")
            optimizer = r.torch.optim.SGD()
            optimizer.step()
            optimizer.step()
            run_out(r.torch, kind + ":0")
            self.assertEqual(len(r.torch.counts["recorded"]), 2)
            allocator = sys.modules[how["package"]]._C.allocator
            self.assertEqual(allocator.max_entries, 50)
            last = list(r.snapshots().values())[-1]["history"]
            self.assertEqual((last["by"], "max_entries" in last), ("program", False))

    def test_who_turns_it_off_later_wins(self):
        with room(HEAPWIRE_TORCH_WINDOW_STEPS="1") as r:
            r.torch.empty(1)
            r.torch.cuda.memory._record_memory_history(None)
            r.torch.optim.SGD().step()
            self.assertIsNone(r.torch._C.allocator.history)
            self.assertEqual(r.only()["history"], {"enabled": False})

    def test_torch_npus_own_dumper_is_left_alone(self):
        for late in ("", "1"):  # turned on after our turn, or before
            with self.subTest(late=late), room("torch_npu", OOM_SNAPSHOT_ENABLE="1", STANDIN_LATE=late) as r:
                self.torch_npus_own_dumper(r)

    def torch_npus_own_dumper(self, r):
        os.environ["OOM_SNAPSHOT_PATH"] = r.folder
        run_out(r.torch, "npu:0")
        self.assertEqual(r.torch.counts["recorded"], [])
        self.assertEqual(r.torch_npu._C.allocator.max_entries, (1 << 64) - 1)
        got = r.only()
        self.assertEqual(got["history"], {"enabled": True, "by": "torch_npu"})
        self.assertIn("OOM_SNAPSHOT_ENABLE", got["error"])
        pickles = [n for n in r.names() if n.endswith(".pickle")]
        self.assertEqual(len(pickles), 1)
        self.assertRegex(pickles[0], r"^oom_snapshot_\d+_\d{14}\.pickle$")


class PinnedMemory(unittest.TestCase):
    def pinned(self, r, name):
        """address -> size and requested_size of each block, and the sizes of the events that allocated them."""
        tree = r.tree(name)
        blocks = {b["address"]: (b["size"], b["requested_size"]) for s in tree["host_segments"] for b in s["blocks"]}
        return blocks, [(e["addr"], e["size"]) for e in tree["host_traces"] if e["action"] == "alloc"]

    def test_it_is_recorded_where_the_build_has_it(self):
        for version in ("2.1", "2.6", "2.12", "2.14"):
            with self.subTest(version=version), room(STANDIN_TORCH=version) as r:
                r.torch.empty(1)
                (recorded,) = r.torch.counts["recorded"]
                self.assertEqual(recorded["pinned"], version == "2.14")
                self.assertEqual(r.torch._C.host_allocator.recording, version == "2.14")
                self.assertEqual((recorded["max_entries"], recorded["stacks"]), (100000, "python"))
                self.assertTrue(r.heapwire.snapshot())
                self.assertEqual(r.heapwire.status()["errors"], [])

    def test_what_was_asked_for_is_in_the_snapshot(self):
        with room() as r:
            r.torch.empty(1)
            gone = r.torch.empty(3000, pin_memory=True)
            address = gone.data_ptr()
            del gone
            first = r.torch.empty(2049, pin_memory=True)  # where the one that is gone was
            second, third = (r.torch.empty(n, pin_memory=True) for n in ((8 << 20) + 1, 4096 * 4))
            self.assertEqual(first.data_ptr(), address)
            self.assertTrue(r.heapwire.snapshot())
            blocks, allocated = self.pinned(r, "000001.api.cuda")
            self.assertEqual(blocks, {address: (4096, 2049), second.data_ptr(): (16 << 20, (8 << 20) + 1), third.data_ptr(): (16384, 16384)})
            # What is gone was freed as it was allocated, rounded.
            self.assertEqual(allocated, [(address, 4096), (address, 2049), (second.data_ptr(), (8 << 20) + 1), (third.data_ptr(), 16384)])
            got = r.only()
            self.assertEqual(got["pinned"], {"blocks": 3, "asked": 3})
            figures = got["memory_stats"]["cpu"]
            self.assertEqual((figures["active_bytes.current"], figures["num_host_alloc"]), (4096 + (16 << 20) + 16384, 3))
            self.assertEqual(r.heapwire.status()["errors"], [])

    def test_a_block_without_a_tensor_stays_as_it_is(self):
        with room() as r:
            r.torch.empty(1)

            class Mine(r.torch.Tensor):
                def untyped_storage(self):
                    raise AssertionError("the program's own is called")

            address = r.torch._C.host_allocator.malloc(3000)
            mine, plain = Mine(3000, pin_memory=True), r.torch.empty(3000, pin_memory=True)
            self.assertTrue(r.heapwire.snapshot())
            blocks, _ = self.pinned(r, "000001.api.cuda")
            self.assertEqual(blocks, {address: (4096, 4096), mine.data_ptr(): (4096, 4096), plain.data_ptr(): (4096, 3000)})
            self.assertEqual(r.only()["pinned"], {"blocks": 3, "asked": 1})
            self.assertEqual(r.heapwire.status()["errors"], [])

    def test_where_a_request_is_refused_no_object_is_looked_at(self):
        with room() as r:
            r.torch.empty(1)
            held = r.torch.empty(3000, pin_memory=True)
            run_out(r.torch)
            blocks, _ = self.pinned(r, "000001.oom.cuda")
            self.assertEqual(blocks, {held.data_ptr(): (4096, 4096)})
            self.assertNotIn("pinned", r.only())
            self.assertEqual(r.only()["memory_stats"]["cpu"]["active_bytes.current"], 4096)

    def test_what_the_program_records_of_it_is_left_alone(self):
        with room(profiled=False) as r:
            r.torch.cuda.memory._record_memory_history(max_entries=7, record_pinned_host_memory=True, record_cuda=False)
            r.profiled = True  # the device is in use, and nobody can tell what is recorded
            r.heapwire.snapshot()
            self.assertEqual([n["pinned"] for n in r.torch.counts["recorded"]], [True, False])
            self.assertEqual((r.torch._C.host_allocator.max_entries, r.torch._C.allocator.max_entries), (7, 100000))

    def test_who_turns_it_on_or_off_later_wins(self):
        with room() as r:
            r.torch.empty(1)
            r.torch.cuda.memory._record_memory_history(max_entries=50, record_pinned_host_memory=True)
            r.heapwire.snapshot()
            self.assertEqual(r.torch._C.host_allocator.max_entries, 50)
            r.torch.cuda.memory._record_memory_history(None)
            r.heapwire.snapshot()
            self.assertFalse(r.torch._C.host_allocator.recording)
            self.assertEqual(self.pinned(r, "000002.api.cuda"), ({}, []))


class Steps(unittest.TestCase):
    def test_windows(self):
        with room(HEAPWIRE_TORCH_WINDOW_STEPS="2") as r:
            r.torch.empty(1)
            optimizer = r.torch.optim.SGD()
            for _ in range(5):
                optimizer.step()
            self.assertEqual(list(r.snapshots()), ["000001.steps1-2.cuda", "000002.steps3-4.cuda"])
            got = list(r.snapshots().values())[1]
            self.assertEqual((got["reason"], got["window"], got["step"]), ("window", "steps3-4", 4))
            self.assertNotIn("requested_bytes", got)
            self.assertEqual(r.steps, [1, 2, 3, 4, 5])

    def test_off_by_default(self):
        with room() as r:
            r.torch.empty(1)
            for _ in range(100):
                r.heapwire.step()
            self.assertEqual(r.names(), [])

    def test_no_window_before_a_device_is_used(self):
        with room(HEAPWIRE_TORCH_WINDOW_STEPS="1") as r:
            r.heapwire.step()
            self.assertEqual((r.names(), r.torch.counts["initialised"]), ([], []))
            r.torch.empty(1)
            r.heapwire.step()
            self.assertEqual(list(r.snapshots()), ["000001.steps2-2.cuda"])

    def test_several_optimizers_are_one_step(self):
        with room() as r:
            optimizers = [r.torch.optim.SGD() for _ in range(4)]
            for _ in range(3):
                for o in optimizers:
                    o.step()
            self.assertEqual(r.steps, [1, 2, 3])
            late = r.torch.optim.SGD()  # one that takes over, as after a restart of training
            late.step()
            late.step()
            self.assertEqual(r.steps, [1, 2, 3, 4])
            for o in optimizers:
                o.step()
            self.assertEqual(r.steps, [1, 2, 3, 4])

    def test_a_forgotten_optimizer_is_not_kept(self):
        import gc
        import weakref

        with room() as r:
            o = r.torch.optim.SGD()
            o.step()
            ref = weakref.ref(o)
            del o
            gc.collect()
            self.assertIsNone(ref())

    def test_the_program_may_count_itself(self):
        with room(HEAPWIRE_TORCH_WINDOW_STEPS="3") as r:
            r.torch.empty(1)
            r.heapwire.step(1000)
            o = r.torch.optim.SGD()
            o.step()
            r.heapwire.step()
            r.heapwire.step(1002)
            r.heapwire.step(4)  # from a checkpoint again
            r.heapwire.step(5)
            r.heapwire.step(6)
            self.assertEqual(r.steps, [1000, 1001, 1002, 4, 5, 6])
            self.assertEqual(list(r.snapshots()), ["000001.steps1000-1002.cuda", "000002.steps4-6.cuda"])

    def test_nonsense_is_no_step_and_no_error_of_the_programs(self):
        with room() as r:
            r.heapwire.step("seven")
            r.heapwire.step(7)
            self.assertEqual(r.steps, [7])
            self.assertIn("seven", " ".join(r.heapwire.status()["errors"]))

    def test_ranks(self):
        for ranks, rank, want in (
            ("0", None, 1), ("0", "0", 1), ("0", "1", 0), ("0,8-15", "8", 1), ("0,8-15", "16", 0), ("all", "99", 1), ("", "99", 1),
        ):
            with self.subTest(ranks=ranks, rank=rank), room(
                HEAPWIRE_TORCH_WINDOW_STEPS="1", HEAPWIRE_TORCH_RANKS=ranks
            ) as r:
                if rank is not None:
                    os.environ["RANK"] = rank  # a worker learns it after its start
                r.torch.empty(1)
                r.heapwire.step()
                self.assertEqual(len(r.snapshots()), want)
                run_out(r.torch)  # a refusal is told whatever the rank
                self.assertEqual(len(r.snapshots()), want + 1)

    def test_the_rank_of_torch_distributed(self):
        with room() as r:
            r.torch.distributed.rank = 5
            run_out(r.torch)
            self.assertEqual(r.only()["rank"], 5)

    def test_segments_each_interval_where_the_build_has_them_alone(self):
        for version, want in (("2.12", 2), ("2.6", 0)):
            with self.subTest(version=version), room(STANDIN_TORCH=version, HEAPWIRE_TORCH_SEGMENTS="10s") as r:
                from heapwire import _arm

                class Clock:
                    now = 0.0

                    def monotonic(self):
                        return self.now

                _arm.time = Clock()
                held = r.torch.empty(4 << 20)
                for _ in range(25):
                    r.heapwire.step()
                    _arm.time.now += 1
                self.assertEqual(len(r.snapshots()), want)
                for name, got in r.snapshots().items():
                    self.assertEqual((name[7:], got["reason"]), ("segments.cuda", "segments"))
                    self.assertNotIn("history", got)
                    self.assertEqual(got["memory_stats"]["cuda:0"]["allocated_bytes.all.current"], 4 << 20)
                    self.assertEqual(r.tree(name)[0]["total_size"], 4 << 20)
                del held

    def test_without_history_every_build_has_cheap_segments(self):
        with room("torch_npu", HEAPWIRE_TORCH_HISTORY="0", HEAPWIRE_TORCH_SEGMENTS="1ms") as r:
            import time

            r.torch.empty(1, "npu:0")
            r.heapwire.step()
            deadline = time.monotonic() + 60
            while not r.names() and time.monotonic() < deadline:
                r.heapwire.step()
            self.assertEqual(list(r.snapshots())[0], "000001.segments.npu")

    def test_segments_follow_the_interval_of_dumps(self):
        for interval, segments, want in (("", "", 60.0), ("5m", "", 300.0), ("5m", "10s", 10.0), ("0", "", 0.0), ("500ms", "", 0.5)):
            with room(HEAPWIRE_INTERVAL=interval, HEAPWIRE_TORCH_SEGMENTS=segments):
                from heapwire import _settings

                self.assertEqual(_settings.Settings().segments, want)


class Api(unittest.TestCase):
    def test_a_snapshot_with_a_name(self):
        with room() as r:
            held = r.torch.empty(3 << 20)
            self.assertTrue(r.heapwire.snapshot("After Load!"))
            self.assertTrue(r.heapwire.snapshot("../../etc/passwd"))
            self.assertTrue(r.heapwire.snapshot())
            names = list(r.snapshots())
            self.assertEqual(names, ["000001.after-load-.cuda", "000002.api.cuda", "000003.api.cuda"])
            got = r.snapshots()[names[0]]
            self.assertEqual((got["reason"], got["name"], got["device"]), ("api", "After Load!", "cuda:0"))
            self.assertIn("test_a_snapshot_with_a_name", " ".join(got["python_stack"]))
            self.assertEqual(r.heapwire.status()["devices"]["cuda"]["snapshots"], 3)
            del held

    def test_nothing_happens_where_the_process_is_not_profiled(self):
        with room(profiled=False, HEAPWIRE_TORCH_WINDOW_STEPS="1") as r:
            self.assertEqual(len(r.torch.optim.optimizer._global_optimizer_post_hooks), 0)
            r.heapwire.step()
            self.assertFalse(r.heapwire.snapshot())
            run_out(r.torch)
            self.assertEqual((r.names(), r.steps), ([], []))
            self.assertEqual(r.torch.counts["observers"], 0)
            self.assertEqual(r.heapwire.status()["profiled"], False)
            self.assertEqual([f for f in sys.meta_path if hasattr(f, "heapwire")], [])

    def test_nothing_happens_where_it_is_switched_off(self):
        with room(HEAPWIRE_TORCH="off") as r:
            run_out(r.torch)
            self.assertEqual((r.names(), r.torch.counts["observers"]), ([], 0))

    def test_bad_settings_are_told_and_the_defaults_hold(self):
        with room(
            HEAPWIRE_TORCH_HISTORY="many", HEAPWIRE_TORCH_WINDOW_STEPS="-1", HEAPWIRE_TORCH_RANKS="3-1", HEAPWIRE_TORCH_OOM_GAP="soon",
            HEAPWIRE_TORCH_SEGMENTS="1.5s",
        ) as r:
            run_out(r.torch)
            self.assertEqual(r.torch.counts["recorded"][0]["max_entries"], 100000)
            errors = r.heapwire.status()["errors"]
            self.assertEqual(len(errors), 5)
            for name in ("HISTORY", "WINDOW_STEPS", "RANKS", "OOM_GAP", "SEGMENTS"):
                self.assertTrue(any("HEAPWIRE_TORCH_%s=" % name in e for e in errors), name)


class Fork(unittest.TestCase):
    def in_child(self, f):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                f()
                code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_a_child_arms_itself(self):
        with room() as r:
            r.heapwire.step()
            r.heapwire.step()

            def child():
                assert r.heapwire.status()["step"] is None
                run_out(r.torch)
                assert r.heapwire.status()["devices"]["cuda"]["armed"]
                got = r.only()
                assert "step" not in got and got["oom_count"] == 1, got

            self.in_child(child)
            self.assertEqual(r.heapwire.status()["step"], 2)
            self.assertFalse(r.heapwire.status()["devices"]["cuda"]["armed"])

    def test_a_child_of_a_process_that_uses_the_device_has_nothing_of_its_parents(self):
        with room(HEAPWIRE_TORCH_WINDOW_STEPS="1") as r:
            run_out(r.torch)
            run_out(r.torch)  # its snapshot is still to come, in the parent
            before = r.names()

            def child():
                r.heapwire.step()
                r.heapwire.snapshot()
                from heapwire import _arm

                _arm._last_call(os.getpid())
                _arm._last_call(os.getppid())
                assert r.names() == before, r.names()

            self.in_child(child)


if __name__ == "__main__":
    unittest.main()
