"""A function replayed from a CUDA graph is the function."""

import copy
import gc
import threading

import pytest
import torch

import plugstream.base.cuda_graphs as module
from plugstream import BM3D, BornGeometry, BornModel
from plugstream.base.cuda_graphs import Branches, GraphCall, filled
from plugstream.models import born_fast


class CountingModel:
    """x^2 + y, and how often Python ran it."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x, y=None):
        self.calls += 1
        return x.square() if y is None else x.square() + y


def test_on_the_cpu_every_call_is_the_functions_own():
    f = CountingModel()
    g = GraphCall(f)
    for k in range(5):
        assert torch.equal(g(torch.full((3,), float(k)), None), torch.full((3,), float(k * k)))
    assert f.calls == 5


def test_a_copy_captures_anew():
    g = GraphCall(CountingModel())
    again = copy.deepcopy(g)
    assert again.function is not g.function
    assert torch.equal(again(torch.ones(2)), torch.ones(2))


def test_branches_are_in_their_order_where_no_graph_is_captured():
    branches = Branches(torch.device("cpu"))
    assert not branches.parallel
    with branches[0]:
        x = torch.ones(2)
    with branches[1]:
        branches.wait(0)
        y = x + 1
    branches.join()
    assert torch.equal(y, torch.full((2,), 2.0))


def test_a_vector_of_one_number():
    assert torch.equal(filled(3, 0.25, torch.device("cpu")), torch.tensor([0.25, 0.25, 0.25]))


@pytest.mark.gpu
class TestOnAGpu:
    def test_a_steady_argument_is_the_one_that_was_given(self):
        g = GraphCall(CountingModel(), steady=(1,))
        x, one, two = (torch.full((4,), float(k), device="cuda") for k in range(3))
        for y in (one, one, one, one, two, two, one, two.clone(), one):
            assert torch.equal(g(x, y), y)
            x.add_(1)
            assert torch.equal(g(x, y), x.square() + y)
            x.zero_()

    def test_an_argument_that_comes_to_one_address_is_read_there_and_others_are_copied(self):
        f = CountingModel()
        g = GraphCall(f, in_place=True)
        x, y = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        for k in range(40):
            x.fill_(k)
            y.fill_(k + 1)
            results = g(x, None), g(y, None), g(torch.full((4,), k + 2.0, device="cuda"), None)
            for n, result in enumerate(results):
                assert torch.equal(result.cpu(), torch.full((4,), float((k + n) ** 2)))
        assert len(g._in_place) == 2
        assert f.calls == 5  # twice as it is, once to copy, and once for each of two addresses
        twisted = torch.arange(16.0, device="cuda").reshape(4, 4)
        for _ in range(20):
            assert torch.equal(g(twisted.T, None), twisted.T.square())

    def test_a_number_is_filled_in_once_and_anew_in_a_capture(self):
        device = torch.device("cuda", torch.cuda.current_device())
        assert filled(2, 0.5, device) is filled(2, 0.5, device)
        assert torch.equal(filled(2, 0.75, device).cpu(), torch.tensor([0.75, 0.75]))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = filled(2, 0.125, device) + 1
        assert torch.equal(filled(2, 0.125, device).cpu(), torch.tensor([0.125, 0.125]))  # before it ever ran
        graph.replay()
        assert torch.equal(out.cpu(), torch.tensor([1.125, 1.125]))

    def test_branches_in_a_graph_are_those_outside_it(self):
        def chain(x):
            for _ in range(30):
                x = (x @ x).sin()
            return x

        def pairs(x):
            branches = Branches(x.device)
            for _ in range(4):  # what one made beside may become memory of the next
                with branches[0]:
                    a = chain(x)
                with branches[1]:
                    b = chain(x.T.contiguous())
                    branches.wait(0)
                    c = a - b
                d = chain(2 * x)
                branches.join()
                x = (c + d).cos()
            return x

        g = GraphCall(pairs)
        for _ in range(6):
            x = torch.randn(64, 64, device="cuda")
            assert torch.equal(g(x), pairs(x))

    @pytest.mark.parametrize("size", [2, 5])
    @pytest.mark.parametrize("second", [False, True])
    def test_replays_give_the_functions_results(self, size, second):
        f = CountingModel()
        g = GraphCall(f)
        results = []
        for k in range(8):
            x = torch.full((size, 3), float(k), device="cuda")
            results.append(g(x, x[0] if second else None))
        assert f.calls == 3  # twice as it is, once to capture it
        for k, result in enumerate(results):  # no result is the memory of a later one
            assert torch.equal(result.cpu(), torch.full((size, 3), float(k * k + (k if second else 0))))

    def test_more_shapes_than_are_kept(self):
        g = GraphCall(CountingModel())
        for _ in range(2):
            for size in range(1, 9):
                for _ in range(4):
                    x = torch.rand(size, device="cuda")
                    assert torch.equal(g(x), x.square())
        assert len(g._graphs) <= 4

    def test_gradients_and_captures_go_to_the_function(self):
        f = CountingModel()
        g = GraphCall(f)
        x = torch.rand(4, device="cuda", requires_grad=True)
        for _ in range(5):
            (slope,) = torch.autograd.grad(g(x).sum(), x)
            assert torch.equal(slope, 2 * x.detach())
        y = torch.rand(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        for _ in range(5):
            g(y)
        with torch.cuda.graph(graph):
            out = g(y)
        y.fill_(3)
        graph.replay()
        assert torch.equal(out.cpu(), torch.full((4,), 9.0))

    def test_streams_and_threads_do_not_mix(self):
        g = GraphCall(CountingModel())
        wrong = []

        def work(value):
            with torch.cuda.stream(torch.cuda.Stream()):
                for k in range(50):
                    x = torch.full((1000,), float(value + k), device="cuda")
                    if not bool((g(x) == (value + k) ** 2).all()):
                        wrong.append((value, k))

        threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_bm3d_and_born_are_the_same_before_and_after(self):
        bm3d, z = BM3D(), torch.rand(2, 64, 71, device="cuda")
        first = bm3d(z, 0.1)
        assert all(torch.equal(bm3d(z, 0.1), first) for _ in range(4))
        other = torch.rand_like(z)
        assert torch.equal(bm3d(other, 0.2), bm3d(other.clone(), torch.tensor([0.2, 0.2], device="cuda")))
        model = BornModel(BornGeometry.paper(64), method="fast", device="cuda")
        x, y = torch.rand(64, 64, device="cuda"), torch.randn(5, 360, dtype=torch.complex64, device="cuda")
        for views in ([0, 7, 9, 3, 3], [1, 2, 3, 4, 59]):
            graphs = [model.gradient(x, y, views) for _ in range(4)]
            index = torch.tensor(views).cuda()
            eager = model.engine._gradient(x[None], index, None, y[None], None, None)[0]
            assert all(torch.equal(g, eager) for g in graphs)

    @pytest.mark.parametrize("table", [True, False])
    def test_born_is_the_same_forward_and_backward(self, monkeypatch, table):
        if not table:
            monkeypatch.setitem(born_fast.TABLE_BYTES, "cuda", 0)
        model = BornModel(BornGeometry.paper(48), method="fast", device="cuda")
        for views in (None, [0, 7, 9, 3, 3], [1, 2, 3, 4, 59]):
            x = torch.rand(48, 48, device="cuda")
            y = model.forward(x, views)
            z = torch.randn_like(y)
            monkeypatch.setenv("PLUGSTREAM_CUDA_GRAPHS", "0")
            want = model.forward(x, views), model.adjoint(z, views)
            monkeypatch.setenv("PLUGSTREAM_CUDA_GRAPHS", "1")
            for _ in range(4):
                assert torch.equal(model.forward(x, views), want[0])
                assert torch.equal(model.adjoint(z, views), want[1])
        graphs = model.engine._graphs
        assert {len(graphs[name]._graphs) for name in ("forward", "adjoint")} == {2}  # of all views, and of five

    def test_garbage_waits_for_a_capture_to_end(self):
        """Graphs in a circle of references, which a collection would end, and the capture that it is in with them."""
        x = torch.rand(4, device="cuda")
        for _ in range(3):
            circle = GraphCall(CountingModel())
            circle.function.owner = circle
            for _ in range(3):
                circle(x)
        del circle

        def allocates(x):
            for _ in range(3000):  # containers enough for collections, in Python
                [[] for _ in range(10)]
            return x + 1

        g = GraphCall(allocates)
        assert all(torch.equal(g(x), x + 1) for _ in range(4))
        assert gc.isenabled()

    def test_where_memory_is_short_calls_are_eager(self, monkeypatch):
        monkeypatch.setattr(module, "_FREE", 1)  # all of it must be free
        f = CountingModel()
        g, x = GraphCall(f), torch.rand(4, device="cuda")
        for _ in range(5):
            assert torch.equal(g(x), x.square())
        assert f.calls == 5
        assert len(g._graphs) == 0

    def test_a_side_stream_is_eager(self):
        f = CountingModel()
        g, x = GraphCall(f), torch.rand(4, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())  # on which x is drawn
        with torch.cuda.stream(side):
            for _ in range(5):
                assert torch.equal(g(x), x.square())
        assert f.calls == 5

    def test_keys_that_come_once_are_forgotten(self):
        g = GraphCall(CountingModel())
        for size in range(1, 400):
            g(torch.rand(size, device="cuda"))
        assert len(g._graphs._calls) <= module._KEYS + 1
