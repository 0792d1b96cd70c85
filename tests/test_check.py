"""The public checks: the solution gets a tick, a misconception gets its name."""

import re
from functools import cache

import pytest
import torch
from wrong_answers import WRONG

from resnotes import assignments, check

# torch.func.jvp still scripts a function of its own when it is first used.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

ANSWERS = [
    (name, question, source, hint)
    for name, questions in WRONG.items()
    for question, answers in questions.items()
    for source, hint in answers
]


@cache
def cells(name):
    """The master's code: [(kind of cell, question, source)], demos left out."""
    found = []
    for cell in assignments.read(name).solved:
        if cell["kind"] == "code" and not cell["demo"]:
            found.append((cell["marks"].get("grade_id", "").split("-", 1)[-1], cell))
    return found


def run(name, question, source=None):
    """Run a master up to a question's check, with another answer if one is given."""
    namespace = {"__name__": "notebook"}
    for label, cell in cells(name):
        answer = label == f"{question}-answer"
        code = source if answer and source is not None else cell["source"]
        needed = not label.startswith("q") or label.endswith("-answer")
        if answer or label == question or (needed and "print(" not in code):
            exec(code, namespace)
        if label == question:
            return
    raise AssertionError(f"{name} has no {question}")


@pytest.mark.parametrize("name", WRONG)
def test_solutions_get_a_tick_for_each_question(name, capsys):
    for question in assignments.read(name).questions:
        if question.probe is not None:
            run(name, question.name.split("-", 1)[-1])
            assert capsys.readouterr().out.startswith("✓ ")


@pytest.mark.parametrize("name", WRONG)
def test_every_graded_question_has_three_known_wrong_answers(name):
    for question in assignments.read(name).questions:
        if question.probe is not None:
            assert len(WRONG[name][question.name.split("-", 1)[-1]]) >= 3


@pytest.mark.parametrize(
    ("name", "question", "source", "hint"),
    ANSWERS,
    ids=[f"{n[0]}-{q}-{k}" for k, (n, q, *_) in enumerate(ANSWERS)],
)
def test_wrong_answers_are_named(name, question, source, hint):
    if hint is None:  # only the hidden check can tell
        run(name, question, source)
        return
    with pytest.raises(check.NotYet, match=re.escape(hint)):
        run(name, question, source)


@pytest.mark.parametrize("name", WRONG)
def test_an_unanswered_question_says_so(name):
    stubs = {
        c["marks"]["grade_id"].split("-", 1)[-1]: c["source"]
        for c in assignments.read(name).released
        if c["marks"].get("solution") and c["kind"] == "code"
    }
    for label, stub in stubs.items():
        with pytest.raises((check.NotYet, NotImplementedError)) as caught:
            run(name, label.removesuffix("-answer"), stub)
        if caught.type is check.NotYet:
            assert "not answered yet" in str(caught.value)


def test_a_hint_is_one_line_in_a_notebook():
    with pytest.raises(check.NotYet) as caught:
        check.norms.q2(lambda x, norms, branches: None)
    assert caught.value._render_traceback_() == [
        "✗ nothing came back: is there a `return`?"
    ]


def test_strange_answers_get_a_sentence():
    for answer, says in [
        (lambda *a: "text", "a str came back"),
        (lambda *a: [[1.0], [1.0, 2.0]], "a list came back"),
        (lambda: 1, "raised TypeError"),
        (lambda *a: torch.tensor(float("nan")), "divided by 0"),
        (lambda *a: 0.123, "and 0.123 came"),
    ]:
        with pytest.raises(check.NotYet, match=says):
            check.vanishing.q2(answer)


def test_checks_leave_the_random_state_alone():
    before = torch.random.get_rng_state()
    check.norms.q4(
        lambda x, g, eps: torch.func.vjp(
            lambda x: x / ((x**2).mean(-1, keepdim=True) + eps).sqrt(), x
        )[1](g)[0]
    )
    assert torch.equal(torch.random.get_rng_state(), before)
