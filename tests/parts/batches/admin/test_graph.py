"""The graph of a batch: its layers, how jobs are folded, and where the nodes stand."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from django_skipqueue.parts.batches.graph import (
    MOST_NODES,
    NODE_HEIGHT,
    NODE_WIDTH,
    Drawing,
    Edge,
    Graph,
    GraphJob,
    Node,
    cut,
    graph_of,
    last_layer,
)


def make_graph_jobs(number: int, task: str = "t", status: str = "queued", first: int = 1) -> list[GraphJob]:
    return [GraphJob(id, task, status) for id in range(first, first + number)]


def test_each_job_of_a_small_batch_is_a_node_behind_the_jobs_for_which_it_waits() -> None:
    needs = [(2, 1), (3, 1), (4, 2), (4, 3)]  # a waiting job, and a job that it needs
    graph = graph_of(make_graph_jobs(4), needs)
    assert [(node.id, node.layer) for node in graph.nodes] == [(1, 0), (2, 1), (3, 1), (4, 2)]
    assert graph.edges == [
        Edge("job 1", "job 2"),
        Edge("job 1", "job 3"),
        Edge("job 2", "job 4"),
        Edge("job 3", "job 4"),
    ]
    assert [node.id for node in graph.before(graph.nodes[3])] == [2, 3]


def test_many_jobs_of_a_task_in_a_status_are_one_node() -> None:
    completed, report = make_graph_jobs(100, status="completed"), GraphJob(200, "report", "blocked")
    queued = make_graph_jobs(5, first=101)
    graph = graph_of([*completed, *queued, report], [(report.id, job.id) for job in (*completed, *queued)])
    assert [(node.kind, node.label, node.status, node.number) for node in graph.nodes] == [
        ("jobs", "t", "completed", 100),
        ("jobs", "t", "queued", 5),
        ("job", "report", "blocked", 1),
    ]
    assert len(graph.edges) == 2
    assert graph.hidden == 0


def test_a_long_chain_of_jobs_is_grouped_without_a_cycle() -> None:
    # jobs of the tasks "b" and "a" take turns
    chain = [GraphJob(id, "ab"[id % 2], "queued") for id in range(1, 201)]
    graph = graph_of(chain, [(after.id, before.id) for before, after in pairwise(chain)])
    assert [(node.label, node.number, node.layer) for node in graph.nodes] == [("b", 100, 0), ("a", 100, 1)]
    assert graph.edges == [Edge("jobs 1", "jobs 2")]


def test_groups_beyond_the_limit_are_hidden_and_counted() -> None:
    graph = graph_of([GraphJob(id, f"t{id}", "queued") for id in range(1, 101)], [])
    assert (len(graph.nodes), graph.hidden) == (MOST_NODES, 100 - MOST_NODES)


def test_callbacks_wait_for_every_node_for_which_no_other_node_waits() -> None:
    graph = graph_of(make_graph_jobs(3), [(2, 1)])
    callback = Node("on_finish", "callback", last_layer(graph), "report", "blocked")
    assert sorted(graph.followed_by([callback]).edges) == [
        Edge("job 1", "job 2"),
        Edge("job 2", "on_finish"),
        Edge("job 3", "on_finish"),
    ]


def test_a_job_outside_of_the_batch_gets_no_edge() -> None:
    assert graph_of(make_graph_jobs(1, first=5), [(5, 1)]).edges == []


def test_without_jobs_there_is_nothing_to_draw() -> None:
    assert Drawing(Graph()).columns == []
    assert last_layer(Graph()) == 0


def test_a_label_is_the_name_of_the_function_shortened() -> None:
    assert cut("shop.jobs.send") == "send"
    assert cut("a" * 100) == "a" * 25 + "…"
    assert cut("name.") == "name."


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), max_size=80),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["queued", "failed"])), min_size=1, max_size=90),
)
def test_no_nodes_overlap_and_every_edge_leads_to_the_right(
    needs: list[tuple[int, int]], tasks_and_statuses: list[tuple[str, str]]
) -> None:
    graph = graph_of(
        [GraphJob(id, *task_and_status) for id, task_and_status in enumerate(tasks_and_statuses, start=1)], needs
    )
    drawing = Drawing(graph)
    places = drawing.places
    assert sum(node.number for node in graph.nodes) + graph.hidden == len(tasks_and_statuses)
    assert len(graph.nodes) <= MOST_NODES
    assert len(set(places.values())) == len(graph.nodes)
    for x, y in places.values():
        assert 0 <= x <= drawing.width - NODE_WIDTH
        assert 0 <= y <= drawing.height - NODE_HEIGHT
    for edge in graph.edges:
        assert places[edge.before][0] + NODE_WIDTH < places[edge.after][0]
    assert len(drawing.paths) == len(graph.edges)
