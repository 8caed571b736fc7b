"""Who is let in, by bytes and by time, and what a refusal says."""

from __future__ import annotations

import pytest

from worldloop.core.errors import BusyError, CapacityError
from worldloop.engine.admission import Admission, Share

MIB = 2**20


def share(resident: float = 0, peak: float = 0, load: float = 0) -> Share:
    return Share(resident_bytes=int(resident * MIB), peak_bytes=int(peak * MIB), load=load)


def test_without_limits_everyone_is_let_in() -> None:
    admission = Admission()
    for key in range(100):
        admission.admit(key, share(1000, 1000, 10))

    assert admission.free_bytes() is None
    assert admission.load == 1000


def test_peaks_count_once_because_one_plan_runs_at_a_time() -> None:
    admission = Admission(memory_bytes=100 * MIB)
    admission.hold("weights", 20 * MIB)
    admission.admit("a", share(10, 30))
    admission.admit("b", share(10, 30))

    assert admission.free_bytes() == 30 * MIB
    admission.admit("c", share(30, 30))
    with pytest.raises(CapacityError):
        admission.admit("d", share(1))
    admission.release("c")
    admission.release("c")
    admission.admit("d", share(1))


def test_a_refusal_says_what_is_needed_and_free_and_what_would_fit() -> None:
    admission = Admission(memory_bytes=100 * MIB)
    admission.admit("a", share(80))

    with pytest.raises(
        CapacityError, match=r"needs 30\.0 MiB and 5\.0 MiB .* 15\.0 MiB of 100\.0 MiB are free: it would"
    ):
        admission.admit("b", share(30, 5))
    with pytest.raises(CapacityError, match=r"at most 95\.0 MiB would fit even alone"):
        admission.admit("b", share(101, 5))
    assert issubclass(CapacityError, BusyError)
    assert admission.resident_bytes == 80 * MIB, "a refusal takes nothing"


def test_real_time_is_shared_out_and_one_alone_may_be_too_slow() -> None:
    admission = Admission(load_limit=1.0)
    admission.admit("slow", share(load=3.0))
    admission.release("slow")
    admission.admit("a", share(load=0.6))

    with pytest.raises(CapacityError, match="has 40% of its time left and this needs 50%"):
        admission.admit("b", share(load=0.5))
    admission.admit("job", share(load=0.0))
    admission.admit("b", share(load=0.4))
    admission.check(share())


@pytest.mark.parametrize("what", ["load", "resident_bytes", "peak_bytes"])
def test_a_share_that_is_given_back_while_the_sums_are_read_disturbs_nothing(what: str) -> None:
    admission = Admission()

    class Read:
        """Read where the shares are summed up; another thread gives one back just then."""

        def __getattr__(self, name: str) -> int:
            admission.release("other")
            return 1

    admission._shares |= {"first": Read(), "other": Share(load=1, resident_bytes=1, peak_bytes=1)}  # type: ignore[dict-item]

    assert getattr(admission, what) >= 1
    assert "other" not in admission._shares
