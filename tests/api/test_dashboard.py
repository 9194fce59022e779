"""The pages in a real browser, over the real API and a real database: what is shown, clicked, and seen to change."""

from __future__ import annotations

import hashlib
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, FloatRect, Page, expect, sync_playwright

from api.app import create_app
from api.dashboard import STATIC, static_version
from estimators.model import MIB, Plan, Prediction
from placement.option import Option
from placement.pipelining.timeline import PassTime, PipelineStep, StageStep
from scamp_service.lifecycle import AttemptState, Outcome, StudyState, TrialState
from scamp_service.model import Json, LogLine, Metric, Report, Study
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from scamp_service.study.spec import StudySpec
from tests.conftest import find_chromium
from tests.services.serving import fill_several
from tests.values import new_attempt, sized

T = TrialState
EVIL = "<img src=x onerror=\"document.title='owned'\">"
TRACEBACK = 'Traceback (most recent call last):\n  File "model.py", line 8, in build_model\nValueError: ' + EVIL
DEVICES = [
    {"id": f"node-{node}/{i}", "node": f"node-{node}", "index": i, "kind": "virtual", "capacity_mib": 96}
    for node in "ab"
    for i in range(2)
]


def spec(name: str, trials: int = 12) -> Json:
    return StudySpec.model_validate(
        {
            "name": name,
            "workload": "vit_digits",
            "objective": {"metric": "accuracy", "direction": "maximize"},
            "space": {"depth": {"choice": [2, 4, 8]}, "lr": {"low": 1e-4, "high": 1e-2, "log": True}},
            "budget": {"trials": trials, "steps": 120, "report_every": 10},
        }
    ).to_json()


class Filler:
    """Writes what a controller and ranks would have written, through the same methods."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = time.time() - 600

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def study(self, name: str, candidates: Sequence[Json], trials: int = 12, warnings: Sequence[str] = ()) -> Study:
        study = self.store.create_study(spec(name, trials), warnings=warnings, now=self.tick())
        self.store.create_trials(study.id, list(enumerate(candidates)), now=self.tick())
        return study

    def ids(self, study: Study) -> list[int]:
        return [trial.id for trial in self.store.trials(study.id)]

    def move(self, trial: int, state: TrialState, attempt: int, to: TrialState, **changes: object) -> None:
        assert self.store.move_trial(trial, state, attempt, to, now=self.tick(), **changes)

    def plan(
        self, trial: int, plan: Plan, mib: int, reason: str = "the smallest degree that fits", is_timed: bool = True
    ) -> None:
        """A plan whose steps are predicted to take a millisecond for each MiB, unless nothing was calibrated."""
        seconds = mib / 1000 if is_timed else None
        found = replace(sized(plan, mib + 3, mib * MIB, reason=reason), step_seconds=seconds)
        self.move(trial, T.WAITING, 0, T.QUEUED, sized=found, reason=reason, family="vit")

    def begin(
        self, trial: int, attempt: int, devices: tuple[str, ...], reason: str = "best fit: 3 MiB stay free"
    ) -> None:
        row = self.store.trial(trial)
        assert row.plan is not None
        token = f"token {trial}/{attempt}"
        new = new_attempt(
            trial, attempt, token=token, plan=row.plan, devices=devices, device_kinds=("virtual",),
            placement_reason=reason, now=self.tick(),
        )  # fmt: skip
        known = replace(new, prediction=row.prediction, predicted_step_seconds=row.predicted_step_seconds)
        begun = self.store.begin_attempt(known)
        assert begun and self.store.report_started(trial, attempt, token, now=self.tick())

    def report(self, trial: int, attempt: int, step: int, value: float, measured: float = 0.0) -> None:
        values = {"accuracy": value, "loss": 2.3 * (1 - value)}
        metric = Metric(trial, attempt, step, step, values, self.tick())
        line = LogLine(trial, attempt, 0, step, self.now, f"step {step} accuracy {value:.4f}")
        assert self.store.report(
            Report(
                trial,
                attempt,
                f"token {trial}/{attempt}",
                metrics=[metric],
                logs=[line],
                objectives=["accuracy"],
                measured_bytes=int(measured * MIB),
                checkpoint_step=step,
                step_seconds=measured / 800,
                timed_steps=max(0, step - 3) if measured else 0,
            ),
            now=self.now,
        )

    def train(self, trial: int, attempt: int, best: float, until: int, measured: float, start: int = 0) -> None:
        for step in range(start + 10, until + 1, 10):
            self.report(trial, attempt, step, best * (1 - math.exp(-step / 30)), measured)

    def end(self, trial: int, attempt: int, outcome: Outcome, detail: str = "") -> None:
        token, now = f"token {trial}/{attempt}", self.tick()
        assert self.store.report_outcome(trial, attempt, token, outcome, detail, now=now)
        assert self.store.move_attempt(trial, attempt, [AttemptState.RUNNING], AttemptState.ENDED, now=now)

    def trained(self, trial: int, plan: Plan, mib: int, best: float, until: int = 120) -> None:
        self.plan(trial, plan, mib)
        self.begin(trial, 1, tuple(f"node-a/{i}" for i in range(plan.world_size)))
        self.train(trial, 1, best, until, mib * 0.97)
        self.end(trial, 1, Outcome.DONE if until == 120 else Outcome.STOPPED)
        pruned = {"reason": f"accuracy at step {until} is not among the best third of 6 trials"}
        done = {"reason": "trained all 120 steps"}
        self.move(trial, T.RUNNING, 1, T.COMPLETED if until == 120 else T.PRUNED, **(done if until == 120 else pruned))


def fill(store: Store) -> None:
    """Study 1: every state a trial can be in. Study 2: one failed trial, and names that would like to be HTML."""
    fill = Filler(store)
    params = [{"depth": 2 + n % 3 * 2, "lr": 10 ** (-4 + n * 0.15)} for n in range(11)]
    ids = fill.ids(fill.study("digits", params))
    single, two = Plan(32), Plan(8, num_micro_batches=2, dp_shard=2, recompute=True)
    fill.trained(ids[0], single, 20, 0.91)
    fill.trained(ids[1], single, 31, 0.62, until=40)
    fill.trained(ids[2], two, 70, 0.97)
    fill.trained(ids[3], single, 24, 0.55, until=40)
    reason = "needs 131.4 MiB on each of 2 ranks on the best plan; the largest device offers 96 MiB"
    fill.move(ids[4], T.WAITING, 0, T.INFEASIBLE, reason=reason)
    fill.plan(ids[5], single, 40)  # out of memory, healed on two ranks
    fill.begin(ids[5], 1, ("node-b/0",))
    fill.train(ids[5], 1, 0.94, 50, 43)
    fill.end(ids[5], 1, Outcome.OUT_OF_MEMORY, "DefaultCPUAllocator: can't allocate memory: 8388608 bytes")
    again = sized(two, 64, 62 * MIB, extra_bytes=9 * MIB)
    fill.move(ids[5], T.RUNNING, 1, T.QUEUED, sized=again, reason="planned anew after an out-of-memory", num_oom=1)
    fill.begin(ids[5], 2, ("node-b/0", "node-b/1"))
    fill.train(ids[5], 2, 0.94, 120, 60, start=40)
    fill.end(ids[5], 2, Outcome.DONE)
    fill.move(ids[5], T.RUNNING, 2, T.COMPLETED, reason="trained all 120 steps")
    fill.plan(ids[6], single, 28)  # runs
    fill.begin(ids[6], 1, ("node-a/0",))
    fill.train(ids[6], 1, 0.96, 60, 27.5)
    fill.plan(ids[7], two, 61)  # runs on both nodes
    fill.begin(ids[7], 1, ("node-a/0", "node-b/1"), "no node has 64 MiB free on two devices: spread over two nodes")
    fill.train(ids[7], 1, 0.93, 30, 60)
    fill.plan(ids[8], two, 66, "waits for 69 MiB on 2 devices at once: node-a/1 has 96 free, node-b/0 comes next")
    _fail(fill)
    store.record_cluster({"status": "ready", "detail": "", "devices": DEVICES}, now=time.time())
    assert store.take_lease("controller", "test", None, now=time.time())


def _fail(fill: Filler) -> None:
    (trial,) = fill.ids(fill.study(EVIL, [{"depth": EVIL, "lr": 0.001}], trials=1))
    fill.plan(trial, Plan(32), 10, EVIL)
    fill.begin(trial, 1, ("node-a/1",), EVIL)
    fill.end(trial, 1, Outcome.ERROR, TRACEBACK)
    fill.move(trial, T.RUNNING, 1, T.FAILED, reason=EVIL)


@contextmanager
def serving(settings: Settings, port: int = 0) -> Iterator[str]:
    """The real application on a free port of this machine, in a thread."""
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(create_app(settings), log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listener.close()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(data_dir=tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def store(settings: Settings) -> Iterator[Store]:
    store = Store(settings.url)
    fill(store)
    yield store
    store.close()


@pytest.fixture(scope="module")
def address(settings: Settings, store: Store) -> Iterator[str]:
    with serving(settings) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=15_000)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, address: str) -> Iterator[Callable[..., Page]]:
    """Opens a page, and fails the test for any console message, script error, failed answer or foreign request."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def check(good: bool, complaint: str) -> None:
        if not good:
            complaints.append(complaint)

    def watch(page: Page) -> None:
        page.on("console", lambda message: check(False, f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: check(False, f"error: {error}"))
        page.on("request", lambda request: check(request.url.startswith(address), f"foreign: {request.url}"))
        page.on("response", lambda answer: check(answer.ok, f"{answer.status} {answer.url}"))

    def open_(path: str) -> Page:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        watch(page)
        page.goto(address + path)
        expect(page.locator("#connection")).to_have_text("Live")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []


def trial_numbers(page: Page) -> list[int]:
    return [int(number) for number in page.locator("#trials tr.row td:first-child").all_text_contents()]


# --- without a browser ------------------------------------------------------------------------------------------


def test_pages_keep_nothing_and_current_static_files_are_kept_forever(address: str) -> None:
    with httpx.Client(base_url=address) as client:
        page = client.get("/studies/1")
        assert page.headers["cache-control"] == "no-store"
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        kept = client.get(f"/static/{static_version()}/study.js")
        assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert kept.headers["content-type"].startswith("text/javascript")
        assert client.get("/static/0123456789ab/study.js").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["nothing.js", "..%2fdashboard.py", "vendor/..%2f..%2fapp.py", "/etc/passwd"])
def test_only_files_of_the_front_end_are_served(address: str, path: str) -> None:
    assert httpx.get(f"{address}/static/{static_version()}/{path}").status_code == 404


def test_vendored_files_are_what_was_published() -> None:
    vendor = STATIC / "vendor"
    noted = re.findall(r"([0-9a-f]{64})  (uplot/\S+)", (vendor / "README.md").read_text())
    assert {name for _, name in noted} == {f"uplot/{path.name}" for path in (vendor / "uplot").iterdir()}
    for digest, name in noted:
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest


def test_no_module_can_turn_data_into_html() -> None:
    ours = [path for path in STATIC.rglob("*.js") if "vendor" not in path.parts]
    assert ours
    for path in ours:
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", path.read_text()
        )
        assert not found, path


# --- in the browser ---------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize(
    ("path", "heading"),
    [("/", "Studies"), ("/studies/1", "digits"), ("/studies/1/trials/5", "Trial 5"), ("/cluster", "Cluster")],
)
def test_every_page_fits_the_window_in_both_themes(
    open_page: Callable[..., Page], tmp_path: Path, path: str, heading: str
) -> None:
    page = open_page(path)
    expect(page.locator("h1")).to_have_text(heading)
    colours = set()
    for width, height in [(1280, 800), (390, 844)]:
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=tmp_path / f"{width}-{scheme}.png", full_page=True)
            assert page.locator("html").evaluate("e => e.scrollWidth") <= width, path
            colours.add(page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor"))
    assert len(colours) == 2, "light and dark differ"


@pytest.mark.browser
def test_studies_are_listed_with_progress_best_and_devices(open_page: Callable[..., Page]) -> None:
    page = open_page("/")
    row = page.locator("#rows tr", has_text="digits").last
    expect(row.locator(".c-state")).to_have_text("Running")
    expect(row.locator(".c-best")).to_have_text("0.9522")
    expect(row.locator(".c-devices")).to_have_text("2")
    expect(row.locator(".progress")).to_have_attribute("aria-label", re.compile("^12 trials: 3 completed,"))
    row.get_by_role("link", name="digits").click()
    expect(page.locator("h1")).to_have_text("digits")


@pytest.mark.browser
def test_names_that_look_like_html_stay_text(open_page: Callable[..., Page]) -> None:
    for path in ("/", "/studies/2", "/studies/2/trials/0"):
        page = open_page(path)
        expect(page.get_by_text(EVIL).first).to_be_visible()
        assert page.locator("img[src=x]").count() == 0
        assert page.title() != "owned"
    expect(page.locator(".trace")).to_have_text(TRACEBACK)


@pytest.mark.browser
def test_trials_are_sorted_by_a_click_and_filtered_by_state(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    expect(page.locator("#trials tr.row")).to_have_count(11)
    expect(page.get_by_role("columnheader", name="Value")).to_have_attribute("aria-sort", "descending")
    expect(page.locator("#trials tr.row td:first-child").first).to_have_text("2")  # the best comes first
    page.get_by_role("button", name="#", exact=True).click()
    expect(page.locator("#trials tr.row td:first-child").first).to_have_text("0")
    assert trial_numbers(page) == list(range(11))
    page.get_by_role("button", name="Meas. MiB").click()
    page.get_by_role("button", name="Meas. MiB").click()
    expect(page.get_by_role("columnheader", name="Meas. MiB")).to_have_attribute("aria-sort", "descending")
    expect(page.locator("#trials tr.row td:first-child").first).to_have_text("2")
    assert trial_numbers(page)[-4:] == [4, 8, 9, 10], "what was not measured comes last"
    page.get_by_role("button", name="Pruned 2").click()
    expect(page.locator("#trials tr.row")).to_have_count(2)
    assert sorted(trial_numbers(page)) == [1, 3]
    page.get_by_role("button", name="Pruned 2").click()
    expect(page.locator("#trials tr.row")).to_have_count(11)
    infeasible = page.locator("#trials tr.row", has_text="Infeasible")
    expect(infeasible).to_contain_text("needs 131.4 MiB on each of 2 ranks")


@pytest.mark.browser
def test_a_filter_and_chosen_columns_are_in_the_address(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    page.get_by_label("Filter", exact=True).fill("depth == 4 and number < 5")
    page.keyboard.press("Enter")
    expect(page.locator("#trials-aside")).to_have_text("2 of 11")
    assert sorted(trial_numbers(page)) == [1, 4]
    page.get_by_role("button", name="Columns").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("checkbox", name="Recomp.").uncheck()
    dialog.get_by_role("button", name="Move lr up").press("Enter")
    dialog.get_by_role("button", name="Done").click()
    page.reload()
    expect(page.locator("#trials-aside")).to_have_text("2 of 11")
    heads = page.locator("#trials thead th").all_text_contents()
    assert heads[:5] == ["#", "State", "Value", "lr", "depth"] and "Recomp." not in heads
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert len(lines) == 3 and lines[0].startswith("number,state,origin,params.depth,params.lr,")


@pytest.mark.browser
def test_charts_of_parameters_are_reached_by_keyboard_and_read_as_tables(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    page.locator("#parallel").focus()  # it is drawn once it is seen
    expect(page.locator("#parallel-aside")).to_contain_text("trials")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#parallel .tip")).to_contain_text("Trial 2")
    page.locator("#parallel-card summary").click()
    expect(page.locator("#parallel-card tbody tr")).to_have_count(2)
    expect(page.locator("#parallel-card tbody")).to_contain_text("depth")
    page.get_by_label("Parameter", exact=True).select_option("lr")
    page.locator("#slice").focus()
    expect(page.locator("#slice")).to_have_attribute("aria-label", re.compile("trials by lr"))
    page.keyboard.press("ArrowRight")
    expect(page.locator("#slice .tip")).to_contain_text("Trial 0")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/studies/1/trials/0$"))


@pytest.mark.browser
def test_the_best_trial_is_named_with_its_parameters(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    expect(page.locator("#best")).to_have_text("0.9522")
    expect(page.locator("#best-box")).to_contain_text("trial 2")
    expect(page.locator("#best-box")).to_contain_text("FSDP over 2 ranks")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy parameters").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert '"depth": 6' in page.evaluate("navigator.clipboard.readText()")


def plot_in(page: Page, chart: str) -> FloatRect:
    """Where the plot of a chart is, once it stays there: a page that is being drawn moves charts, and replaces them."""
    page.locator(chart).scroll_into_view_if_needed()
    expect(page.locator(f"{chart} canvas")).to_be_visible()
    before: FloatRect | None = None
    for _ in range(100):
        found = page.locator(f"{chart} .u-over").bounding_box()
        if found is not None and found == before:
            return found
        before = found
        page.wait_for_timeout(50)
    raise AssertionError(f"{chart} does not come to rest")


@pytest.mark.browser
def test_a_point_of_the_history_names_its_trial_and_opens_it(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    plot = plot_in(page, "#history")
    x = plot["x"] + plot["width"] * 4.5 / 11  # trial 4 of -0.5 … 10.5; infeasible: on the rail at the bottom
    page.mouse.move(x, plot["y"] + plot["height"] - 9)
    expect(page.locator("#history .tip")).to_contain_text("Trial 4 infeasible")
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("h1")).to_have_text("Trial 4")
    expect(page.locator("#attempts")).to_contain_text("has used no device")


def hover_best_curve(page: Page) -> FloatRect:
    """Point at the last step of study 1's best curve; returns where the plot is."""
    plot = plot_in(page, "#curves")
    page.mouse.move(plot["x"] + plot["width"] - 2, plot["y"] + plot["height"] * 0.06)
    return plot


@pytest.mark.browser
def test_a_curve_under_the_pointer_is_named_and_its_row_marked(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    hover_best_curve(page)
    expect(page.locator("#curves .tip")).to_contain_text("Trial 2 completed")
    expect(page.locator("#curves .tip")).to_contain_text("accuracy 0.9522 at step 120")
    expect(page.locator("#trials tr.lit td:first-child")).to_have_text("2")
    page.select_option("#metric", "loss")
    plot = plot_in(page, "#curves")  # what has come since above it may have moved it
    page.mouse.move(plot["x"] + plot["width"] - 2, plot["y"] + plot["height"] * 0.94)
    expect(page.locator("#curves .tip")).to_contain_text("loss 0.1099 at step 120")


@pytest.mark.browser
def test_a_trial_shows_how_an_out_of_memory_was_healed(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    expect(page.locator("#memory canvas")).to_be_visible()  # what is drawn above the table moves it
    page.locator("#trials tr.row", has_text="1 OOM").click()
    expect(page.locator("h1")).to_have_text("Trial 5")
    expect(page.locator("#plan")).to_have_text("FSDP over 2 ranks, micro-batch 2 × 8, recompute; effective batch 32")
    first = page.locator("#attempts tbody").last
    expect(first).to_contain_text("Out of memory")
    expect(first).to_contain_text("can't allocate memory")
    expect(first.locator("td.num").nth(2)).to_have_text("> 43.0")
    expect(page.locator("#predicted")).to_have_text("53 MiB −11.7 %")
    expect(page.locator("#measured")).to_have_text("60 MiB")
    expect(page.locator("#attempts-aside")).to_have_text("2 attempts, 1 out-of-memory failure healed by a new plan")
    expect(page.locator("#curves figure")).to_have_count(2)
    expect(page.locator("#log li").last).to_contain_text("step 120 accuracy")


def point_at_peak(page: Page, predicted: float, measured: float, top: float) -> None:
    """Point at a place of the plot of peaks, in MiB; ``top`` ends both axes."""
    plot = plot_in(page, "#memory")
    page.mouse.move(
        plot["x"] + plot["width"] * predicted / top, plot["y"] + plot["height"] * (1 - measured / top), steps=3
    )


@pytest.mark.browser
def test_predicted_is_plotted_against_measured_and_an_out_of_memory_as_a_lower_bound(
    open_page: Callable[..., Page],
) -> None:
    page = open_page("/studies/1")
    top = 70 * 1.12
    point_at_peak(page, 70, 67.9, top)
    expect(page.locator("#memory .tip")).to_contain_text("Trial 2 completed")
    expect(page.locator("#memory .tip")).to_contain_text("predicted 70.0, measured 67.9 MiB (-3.0 %)")
    point_at_peak(page, 40, 43, top)
    expect(page.locator("#memory .tip")).to_contain_text("Trial 5 completed, attempt 1 out of memory")
    expect(page.locator("#memory .tip")).to_contain_text("predicted 40.0, needs more than 43.0 MiB (+8 %)")
    point_at_peak(page, 53, 60, top)
    expect(page.locator("#memory .tip")).to_contain_text("attempt 2")
    words = "Attempts that had enough memory: median error 3.1 %, worst 11.7 %, by tensors."
    expect(page.locator("#memory-errors")).to_have_text(words)
    expect(page.locator("#memory-failures")).to_have_text(
        "1 attempt out of memory: the worst needed at least 8 % more than predicted."
    )
    expect(page.locator("#memory-learned")).to_have_text(
        "Learned: +13.0 MiB from 5 trials of a family with layout single (study 1); "
        "+7.0 MiB from 3 trials of a family with layout fsdp2+recompute+accumulate (study 1)."
    )


@pytest.mark.browser
def test_a_peak_appears_as_soon_as_it_is_measured(open_page: Callable[..., Page], store: Store) -> None:
    fill = Filler(store)
    (trial,) = fill.ids(fill.study("peaks", [{"depth": 2, "lr": 0.001}], trials=1))
    page = open_page(f"/studies/{store.trial(trial).study_id}")
    expect(page.locator("#memory .blank")).to_contain_text("once its peak memory has been measured")
    expect(page.locator("#memory-errors")).to_be_empty()
    expect(page.locator("#memory-learned")).to_be_empty()
    fill.plan(trial, Plan(32), 30)
    fill.begin(trial, 1, ("node-a/1",))
    fill.report(trial, 1, 10, 0.5, 36)
    expect(page.locator("#memory .blank")).to_be_hidden()
    expect(page.locator("#memory-errors")).to_have_text("Median error 16.7 %, worst 16.7 %, by tensors.")
    point_at_peak(page, 30, 36, 36 * 1.12)
    expect(page.locator("#memory .tip")).to_contain_text("Trial 0 running")


@pytest.mark.browser
def test_predicted_step_times_are_plotted_against_measured_ones(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    expect(page.locator("#steps-errors")).to_have_text(
        re.compile(r"^Median error 18 %, worst 26 %\. Predictions are for a gang alone on its host\.$")
    )
    low, high = 0.020 / 1.4, 0.0875 * 1.4  # the first prediction, and the last measurement of trial 2
    plot = plot_in(page, "#steps")

    def place(seconds: float) -> float:
        return math.log(seconds / low) / math.log(high / low)

    x, y = place(0.070), 1 - place(67.9 / 800)
    page.mouse.move(plot["x"] + plot["width"] * x, plot["y"] + plot["height"] * y, steps=3)
    expect(page.locator("#steps .tip")).to_contain_text("Trial 2 completed")
    expect(page.locator("#steps .tip")).to_contain_text("predicted 70 ms, measured 84.9 ms (× 1.21)")


@pytest.mark.browser
def test_a_trial_shows_the_step_time_of_its_plan_and_of_each_attempt(
    open_page: Callable[..., Page], store: Store
) -> None:
    page = open_page("/studies/1/trials/0")
    expect(page.locator("#step-time")).to_have_text("20 ms / 24.2 ms × 1.21")
    expect(page.locator("#plan-time")).to_contain_text("20 ms with the gang alone on its host")
    cells = page.locator("#attempts tbody td.num")
    expect(cells.nth(3)).to_have_text("20 ms")
    expect(cells.nth(4)).to_have_text("24.2 ms")


@pytest.mark.browser
def test_a_trial_says_that_its_step_time_is_corrected_by_earlier_trials(
    open_page: Callable[..., Page], store: Store
) -> None:
    fill = Filler(store)
    (trial,) = fill.ids(fill.study("learned", [{"depth": 2, "lr": 0.001}], trials=1))
    known = replace(sized(Plan(32)), step_seconds=0.026, step_factor=1.3)
    fill.move(trial, T.WAITING, 0, T.QUEUED, sized=known, reason="fits", family="vit")
    page = open_page(f"/studies/{store.trial(trial).study_id}/trials/0")
    expect(page.locator("#step-time")).to_have_text("26 ms / –")
    expect(page.locator("#plan-time")).to_contain_text("26 ms, which is × 1.30 as in earlier trials of its family")


@pytest.mark.browser
def test_a_trial_lists_the_plans_that_were_compared_and_which_was_chosen(
    open_page: Callable[..., Page], store: Store
) -> None:
    fill, wide = Filler(store), Plan(16, dp_shard=2)
    (trial,) = fill.ids(fill.study("compared", [{"depth": 2, "lr": 0.001}], trials=1))
    options = (Option(Plan(32), Prediction(97 * MIB), 96), Option(wide, Prediction(60 * MIB), 96))
    known = replace(sized(wide), options=options)
    fill.move(trial, T.WAITING, 0, T.QUEUED, sized=known, reason="fits", family="vit")
    page = open_page(f"/studies/{store.trial(trial).study_id}/trials/0")
    expect(page.locator("#options-aside")).to_have_text("the first plan that fits was chosen")
    expect(page.locator("#options-rows tr").first).to_contain_text("over 96 MiB")
    expect(page.locator("#options-rows tr").nth(1)).to_contain_text("chosen")


@pytest.mark.browser
def test_where_the_speed_of_devices_is_not_known_the_pages_say_so(open_page: Callable[..., Page], store: Store) -> None:
    fill = Filler(store)
    (trial,) = fill.ids(fill.study("speed", [{"depth": 2, "lr": 0.001}], trials=1))
    fill.plan(trial, Plan(32), 30, is_timed=False)
    fill.begin(trial, 1, ("node-a/1",))
    study = open_page(f"/studies/{store.trial(trial).study_id}")
    expect(study.locator("#steps .blank")).to_contain_text("once its steps have been timed")
    expect(study.locator("#steps-errors")).to_be_empty()
    fill.report(trial, 1, 10, 0.5, 36)
    expect(study.locator("#steps-errors")).to_contain_text("1 trial timed, but no time was predicted")
    page = open_page(f"/studies/{store.trial(trial).study_id}/trials/0")
    expect(page.locator("#step-time")).to_have_text("– / 45 ms")
    expect(page.locator("#plan-time")).to_contain_text("It is measured when no study runs, or by “scamp calibrate”")


@pytest.mark.browser
def test_the_cluster_shows_gangs_by_device_and_links_their_ranks(open_page: Callable[..., Page]) -> None:
    page = open_page("/cluster")
    expect(page.locator(".node")).to_have_count(2)
    shared = page.locator(".device").first
    expect(shared).to_contain_text("1 MiB free of 96 MiB")
    expect(shared.locator(".gang")).to_have_count(2)
    shared.locator(".gang", has_text="#7").hover()
    expect(page.locator(".gang.linked")).to_have_count(2)
    expect(page.locator("#waiting")).to_contain_text("waits for 69 MiB on 2 devices at once")
    shared.locator(".gang", has_text="#7").click()
    expect(page.locator("h1")).to_have_text("Trial 7")


@pytest.mark.browser
def test_what_ranks_report_is_seen_without_a_reload(open_page: Callable[..., Page], store: Store) -> None:
    fill = Filler(store)
    running = fill.ids(store.study(1))[6]
    study, trial, cluster = open_page("/studies/1"), open_page("/studies/1/trials/6"), open_page("/cluster")
    row = study.locator("#trials tr.row", has=study.get_by_role("link", name="6", exact=True))
    expect(row).to_contain_text("0.8301")
    expect(cluster.locator(".gang", has_text="#6")).to_have_count(1)
    fill.report(running, 1, 70, 0.8765, 28.5)
    expect(row).to_contain_text("0.8765")
    expect(row).to_contain_text("28.5")
    expect(trial.locator("#value")).to_have_text("0.8765")
    expect(trial.locator("#log li").last).to_contain_text("step 70 accuracy 0.8765")
    hover_best_curve(study)
    fill.end(running, 1, Outcome.DONE)
    fill.move(running, T.RUNNING, 1, T.COMPLETED, reason="trained all 120 steps")
    expect(row).to_contain_text("Completed")
    expect(trial.locator("#state")).to_have_text("Completed")
    expect(cluster.locator(".gang", has_text="#6")).to_have_count(0)
    expect(study.locator("#curves .tip")).to_contain_text("Trial 2")  # the chart was drawn anew under the pointer


@pytest.mark.browser
def test_a_plan_on_any_axis_is_shown_with_its_ranks_and_batch(open_page: Callable[..., Page], store: Store) -> None:
    fill = Filler(store)
    study = fill.study("axes", [{"depth": 2, "lr": 0.001}, {"depth": 4, "lr": 0.001}], trials=2)
    runs, waits = fill.ids(study)
    plan = Plan(4, 4, tp=2, pp=2)
    fill.plan(runs, plan, 10)
    fill.begin(runs, 1, tuple(device["id"] for device in DEVICES))
    fill.plan(waits, Plan(4, dp_replicate=4), 10)
    page = open_page(f"/studies/{study.id}")
    row = page.locator("#trials tr.row").first
    for column, text in [(3, "2"), (4, "0.001"), (5, "TP ×2 · PP ×2"), (6, "16"), (7, "4 × 4")]:
        expect(row.locator("td").nth(column)).to_have_text(text)
    expect(page.locator("#running")).to_have_text("1 on 4 ranks")
    page = open_page(f"/studies/{study.id}/trials/0")
    words = "tensor parallel over 2 ranks × 1f1b pipeline of 2 stages, micro-batch 4 × 4; effective batch 16"
    expect(page.locator("#plan")).to_have_text(words)
    expect(page.locator("#attempts")).to_contain_text("TP ×2 · PP ×2")
    waiting = open_page("/cluster").locator("#waiting tr", has_text="axes")
    expect(waiting.locator("td").nth(3)).to_have_text("4")
    fill.end(runs, 1, Outcome.DONE)


def plan_pipeline(fill: Filler, num_micro_batches: int = 4) -> int:
    """A waiting trial with a pipeline of two stages, each of two ranks."""
    (trial,) = fill.ids(fill.study("pipeline", [{"depth": 2, "lr": 0.001}], trials=1))
    first = StageStep(PassTime(0.010, sending_seconds=0.002), PassTime(0.020), 0.001, 40 * MIB, 5 * MIB, 2 * MIB)
    last = StageStep(PassTime(0.010), PassTime(0.020, sending_seconds=0.002), 0.001, 40 * MIB, 5 * MIB, 2 * MIB)
    step = PipelineStep(Plan(4, num_micro_batches, pp=2, dp_shard=2), (first, last))
    pipeline = {"step": step.to_json(), "unit": "s", "communicates": True, "offered_mib": 96}
    known = replace(sized(step.plan), pipeline=pipeline)
    fill.move(trial, T.WAITING, 0, T.QUEUED, sized=known, reason="fits", family="vit")
    return trial


@pytest.mark.browser
def test_a_trial_draws_a_step_of_its_pipeline(open_page: Callable[..., Page], store: Store) -> None:
    fill = Filler(store)
    trial = plan_pipeline(fill)
    page = open_page(f"/studies/{store.trial(trial).study_id}/trials/0")
    step = page.locator("#timeline svg.step")
    expect(page.locator("#timeline-aside")).to_have_text("predicted 161 ms · 20 % bubble · 5.0 % communication")
    expect(
        page.get_by_role("img", name="One optimizer step of a pipeline of 2 stages and 4 micro-batches")
    ).to_be_visible()
    expect(step.locator("desc")).to_contain_text("Stage 0 on ranks 0, 2: at most 52 MiB; the device offers 96 MiB")
    expect(page.locator("#timeline .names span")).to_have_text(
        ["Stage 0", "Stage 1", "Memory held", "Stage 052 MiB of 96 MiB", "Stage 147 MiB of 96 MiB"]
    )
    for kind, num in [("forward", 8), ("backward", 8), ("update", 2)]:
        expect(step.locator(f".pass.{kind}")).to_have_count(num)
    expect(step.locator(".pass.forward text").first).to_have_text("0")
    expect(step.locator(".pass .sending")).to_have_count(8)
    expect(step.locator(".message")).to_have_count(8)
    expect(step.locator(".memory .limit")).to_have_count(2)
    title = step.locator(".pass.forward title").first
    expect(title).to_have_text(
        "Forward pass of micro-batch 0 on stage 0\n0 ms to 12 ms, 12 ms long\ncommunicates for the last 2 ms of it"
    )
    again = sized(Plan(8, 2, dp_shard=2))
    fill.move(trial, T.QUEUED, 0, T.QUEUED, sized=again, reason="planned anew")
    expect(page.locator("#timeline-card")).to_be_hidden()


@pytest.mark.browser
def test_a_long_step_scrolls_in_its_figure_and_the_page_does_not(open_page: Callable[..., Page], store: Store) -> None:
    trial = plan_pipeline(Filler(store), num_micro_batches=16)
    page = open_page(f"/studies/{store.trial(trial).study_id}/trials/0")
    plot = page.locator("#timeline .plot")
    expect(plot).to_be_visible()
    assert plot.evaluate("e => e.scrollWidth <= e.clientWidth"), "a wide window shows all of it"
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("#timeline .names")).to_be_visible()
    page.wait_for_function("() => { const e = document.querySelector('.plot'); return e.scrollWidth > e.clientWidth; }")
    assert page.locator("html").evaluate("e => e.scrollWidth") <= 390
    narrowest = "e => Math.min(...[...e.querySelectorAll('.pass.forward .box')].map(b => b.getBBox().width))"
    assert page.locator("#timeline svg.step").evaluate(narrowest) >= 9.5


@pytest.mark.browser
def test_a_trial_without_a_pipeline_has_no_empty_figure(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1/trials/5")
    expect(page.locator("#plan")).to_contain_text("FSDP over 2 ranks")
    expect(page.locator("#timeline-card")).to_be_hidden()


@pytest.mark.browser
def test_healed_counts_trials_that_ended_well_after_an_out_of_memory(
    open_page: Callable[..., Page], store: Store
) -> None:
    fill = Filler(store)
    study = fill.study("healing", [{"depth": 2, "lr": 0.001}], trials=1)
    (trial,) = fill.ids(study)
    fill.plan(trial, Plan(32), 10)
    fill.begin(trial, 1, ("node-b/1",))
    fill.end(trial, 1, Outcome.OUT_OF_MEMORY)
    fill.move(trial, T.RUNNING, 1, T.QUEUED, num_oom=1)
    fill.begin(trial, 2, ("node-b/1",))
    page, one = open_page(f"/studies/{study.id}"), open_page(f"/studies/{study.id}/trials/0")
    expect(page.locator("#trials tr.row")).to_contain_text("2 · 1 OOM")
    expect(page.locator("#healed")).to_have_text("0")
    expect(one.locator("#attempts-aside")).to_have_text("2 attempts, 1 out-of-memory failure")
    fill.end(trial, 2, Outcome.DONE)
    fill.move(trial, T.RUNNING, 2, T.COMPLETED)
    expect(page.locator("#healed")).to_have_text("1")
    expect(one.locator("#attempts-aside")).to_have_text("2 attempts, 1 out-of-memory failure healed by a new plan")


@pytest.mark.browser
def test_a_completed_study_without_a_completed_trial_is_not_shown_as_a_success(
    open_page: Callable[..., Page], store: Store
) -> None:
    fill = Filler(store)
    study = fill.study("nothing trained", [{"depth": 2, "lr": 0.001}], trials=1, warnings=["no candidate", EVIL])
    (trial,) = fill.ids(study)
    pages = [open_page(f"/studies/{study.id}"), open_page("/")]
    fill.move(trial, T.WAITING, 0, T.INFEASIBLE, reason="needs 400 MiB; the largest device offers 96 MiB")
    assert store.move_study(study.id, [StudyState.RUNNING], StudyState.COMPLETED, now=fill.tick())
    marks = [pages[0].locator("#state"), pages[1].locator("#rows tr", has_text="nothing trained").locator(".c-state")]
    for mark in marks:
        expect(mark).to_have_text("Completed, no trial succeeded")
        expect(mark.locator(".state-completed")).to_have_count(0)  # which is green
        assert mark.evaluate("e => e.scrollWidth <= e.clientWidth"), "the words stay within their cell"
    expect(pages[0].locator("#best-box")).to_have_text("No trial succeeded.")
    expect(pages[0].locator("#warnings")).to_have_text(f"Warning: no candidate; {EVIL}")


@pytest.mark.browser
def test_a_new_study_appears_and_is_stopped_only_when_confirmed(open_page: Callable[..., Page], store: Store) -> None:
    page = open_page("/")
    fill = Filler(store)
    fill.now = time.time()
    made = fill.study("to be stopped", [{"depth": 2, "lr": 0.001}])
    page.get_by_role("link", name="to be stopped").click()
    page.get_by_role("button", name="Stop study").click()
    expect(page.get_by_role("dialog")).to_contain_text("1 trial of “to be stopped”")
    page.get_by_role("button", name="Keep running").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert store.study(made.id).state == "RUNNING"
    page.get_by_role("button", name="Stop study").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop study").click()
    expect(page.locator("#state")).to_have_text("Stopping")
    assert store.study(made.id).state == "STOPPING"


@pytest.mark.browser
def test_a_thousand_trials_scroll_while_only_the_visible_rows_exist(
    open_page: Callable[..., Page], store: Store
) -> None:
    many = [{"depth": 2, "lr": 0.001 + n * 1e-6} for n in range(1000)]
    study = Filler(store).study("many", many, trials=1000)
    page = open_page(f"/studies/{study.id}")
    expect(page.locator("#trials-aside")).to_have_text("1,000 trials")
    assert page.locator("#trials tr.row").count() < 80
    page.locator("#trials").focus()
    page.keyboard.press("End")
    expect(page.locator("#trials").get_by_role("link", name="999", exact=True)).to_be_visible()
    assert page.locator("#trials tr.row").count() < 80


@pytest.mark.browser
def test_trouble_is_shown_with_what_to_do(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    store = Store(settings.url)
    with serving(settings) as url:
        page = browser.new_page()
        page.goto(url)
        expect(page.get_by_role("heading", name="No studies yet")).to_be_visible()
        expect(page.locator("#cli")).to_have_text(f"scamp submit examples/digits.yaml --address {url}")
        expect(page.locator("#banner")).to_contain_text("cluster is starting")
        store.record_cluster({"status": "ready", "detail": "", "devices": DEVICES}, now=time.time() - 60)
        page.goto(f"{url}/cluster")
        expect(page.locator("#banner")).to_contain_text("The controller has been silent for 1 m ")
        page.goto(f"{url}/studies/77")
        expect(page.locator("#main")).to_contain_text("there is no study 77")
        page.goto(f"{url}/cluster")
        expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#connection")).to_have_text("Reconnecting…")
    with serving(settings, port=int(url.rsplit(":", 1)[1])):
        expect(page.locator("#connection")).to_have_text("Live")
    page.close()
    store.close()


@pytest.mark.browser
def test_the_cluster_page_says_who_leads_and_which_errors_were_survived(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    store = Store(settings.url)
    error = {
        "doing": "propose 4 candidates", "error": f"ValueError: {EVIL}", "study_id": 3,
        "first_at": 10.0, "last_at": 20.0, "times": 2,
    }  # fmt: skip
    leader: Json = {"host": "head", "pid": 17, "since": 5.0, "errors": []}
    recorded: Json = {"status": "ready", "detail": "", "devices": DEVICES, "controller": leader}
    with serving(settings) as url:
        page = browser.new_page()
        page.goto(f"{url}/cluster")
        expect(page.locator("#controller-aside")).to_have_text("none has reported yet")
        expect(page.locator("#errors")).to_contain_text("No error")
        expect(page.locator("#speed")).to_be_empty()
        store.record_cluster({**recorded, "speed": "a CPU was measured in 8 s"}, now=time.time() - 60)
        expect(page.locator("#controller-aside")).to_contain_text("process 17 on head led since 1970-01-01")
        expect(page.locator("#speed")).to_contain_text("from the speed of these devices: a CPU was measured in 8 s.")
        store.take_lease("controller", "c", None, now=time.time())
        store.record_cluster({**recorded, "controller": {**leader, "errors": [error]}}, now=time.time())
        row = page.locator("#errors tr")
        expect(row).to_contain_text(f"Could not propose 4 candidates: ValueError: {EVIL}.")
        expect(row.locator("td").nth(1)).to_have_text("2")
        expect(row.get_by_role("link")).to_have_attribute("href", "/studies/3")
        expect(page.locator("#controller-aside")).to_contain_text("process 17 on head leads since 1970-01-01")
        page.close()
    store.close()


@pytest.mark.browser
def test_the_submission_that_the_empty_page_shows_is_accepted(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    with serving(settings) as url:
        page = browser.new_page()
        page.goto(url)
        command = page.locator("#curl").text_content() or ""
        body = command.partition("-d '")[2].removesuffix("'")
        answer = page.request.post(f"{url}/v1/studies", data=body, headers={"Content-Type": "application/json"})
        assert answer.status == 201, answer.text()
        expect(page.get_by_role("link", name="first study")).to_be_visible()
        page.close()


@pytest.mark.browser
def test_an_ended_study_is_deleted_only_when_confirmed(open_page: Callable[..., Page], store: Store) -> None:
    study = Filler(store).study("to be deleted", [{"depth": 2, "lr": 0.001}], trials=1)
    page = open_page(f"/studies/{study.id}")
    expect(page.get_by_role("button", name="Delete study")).to_be_hidden()
    (trial,) = Filler(store).ids(study)
    Filler(store).move(trial, T.WAITING, 0, T.CANCELLED)
    assert store.move_study(study.id, [StudyState.RUNNING], StudyState.COMPLETED, now=time.time())
    page.get_by_role("button", name="Delete study").click()
    expect(page.get_by_role("dialog")).to_contain_text("“to be deleted” with its 1 trial")
    page.get_by_role("button", name="Keep it").click()
    assert store.study(study.id).state == "COMPLETED"
    page.get_by_role("button", name="Delete study").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete study").click()
    expect(page.get_by_role("heading", name="Studies")).to_be_visible()
    expect(page.locator("#rows")).not_to_contain_text("to be deleted")
    assert study.id not in [one.id for one in store.studies(limit=1000)]


@pytest.mark.browser
def test_a_page_asks_for_the_modules_that_it_needs_at_once(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    loaded = "performance.getEntriesByType('resource').map(e => e.name).filter(n => n.endsWith('.js'))"
    preloaded = page.locator("link[rel=modulepreload]").evaluate_all("links => links.map(link => link.href)")
    assert sorted(preloaded) == sorted(set(page.evaluate(loaded)))


@pytest.mark.browser
def test_several_objectives_have_a_front_in_place_of_a_best_trial(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    store = Store(settings.url)
    fill_several(store)
    with serving(settings) as url:
        page = browser.new_page()
        page.goto(f"{url}/studies/1")
        expect(page.locator("#front-aside")).to_have_text("2 on the front, 3 trials")
        expect(page.locator("#front-card tbody tr")).to_have_count(2)
        expect(page.locator("#best-label")).to_have_text("On the Pareto front")
        expect(page.locator("#best-card")).to_be_hidden()
        page.locator("#front").focus()
        page.keyboard.press("Home")
        expect(page.locator("#front .tip")).to_contain_text("predicted.peak_mib 10")
        expect(page.get_by_role("columnheader", name="predicted.peak_mib").last).to_be_visible()
        page.close()
    store.close()
