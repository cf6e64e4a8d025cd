"""One queue of one pair: the protocol as it is, and each shorter protocol, which must be caught."""

from lakehead.buffer.config import CollectorMode
from tests.faults.store import Fault, Faults
from tests.sim.buffer_disruptions import ALL, buffer, collect_orphans, crash, newcomer, pause
from tests.sim.buffer_support import Variant
from tests.sim.buffer_variants import (
    AcknowledgesInAnyOrder,
    AppendsAgain,
    AppendsOutOfOrder,
    ClaimsFromACachedManifest,
    CollectsByAge,
    DeletesLast,
    DoubtsEveryConflict,
    DropsProducersByAge,
    GrowsInDoubt,
    KeepsStaleClaims,
    NeverCleansUp,
    RaisesNumberBeforeListing,
    SkipsFreshClaims,
    TakesUnknownRemovalForDone,
    TrustsNoEpoch,
    from_memory,
)
from tests.support.simulation import Scenario

LATE = Faults(
    {
        Fault.TIMEOUT_APPLIED_LATER: 0.2,
        Fault.TIMEOUT_APPLIED_MUCH_LATER: 0.1,
        Fault.PRECONDITION: 0.2,
        Fault.UNAVAILABLE: 0.3,
    }
)
"""A store that leaves most writes in doubt, and lets many of them land later."""

FORGETFUL = Faults({fault: 0.04 for fault in Fault if fault is not Fault.PRECONDITION_APPLIED})
"""Where a producer is forgotten, nobody can tell a refusal that was applied from one that was not."""

MOST_DONE = 12
"""Each of up to four collectors acknowledges up to three batches at a time, and cleans up from three on."""

NO_DOUBT = Faults({Fault.CONFLICT: 0.05, Fault.PRECONDITION: 0.05}, lost_reads=0.03)


def no_doubt(variant: Variant) -> Scenario:
    """A store that always says what became of a write, and so many batches that clean-up has to run."""
    return buffer(variant, None, pause, newcomer, faults=NO_DOUBT, batches=6, most_done=MOST_DONE)


BUFFER_SOUND: dict[str, Scenario] = {
    "buffer_ordered": buffer(Variant(), CollectorMode.ORDERED, *ALL),
    "buffer_competing": buffer(Variant(), CollectorMode.COMPETING, *ALL),
    "buffer_late": buffer(Variant(), None, pause, faults=LATE),
    "buffer_forgetful": buffer(Variant(max_producers=1, max_collectors=1), None, *ALL, faults=FORGETFUL),
    "buffer_no_doubt": no_doubt(Variant(max_producers=1)),
}
BUFFER_BROKEN: dict[str, Scenario] = {
    "buffer_append_again": buffer(Variant(producer=AppendsAgain), CollectorMode.COMPETING, *ALL),
    "buffer_grown_in_doubt": buffer(Variant(producer=GrowsInDoubt), CollectorMode.COMPETING, pause, faults=LATE),
    "buffer_numbers_out_of_order": buffer(Variant(producer=AppendsOutOfOrder), CollectorMode.COMPETING, *ALL),
    "buffer_producers_dropped_by_age": buffer(Variant(producer=DropsProducersByAge), CollectorMode.COMPETING, pause),
    "buffer_cached_claims": buffer(Variant(consumer=ClaimsFromACachedManifest), CollectorMode.COMPETING, *ALL),
    "buffer_fresh_claims_skipped": buffer(Variant(consumer=SkipsFreshClaims), CollectorMode.ORDERED, crash, pause),
    "buffer_no_epoch": buffer(Variant(consumer=TrustsNoEpoch), CollectorMode.ORDERED, pause, newcomer),
    "buffer_no_owner": buffer(Variant(consumer=TrustsNoEpoch), CollectorMode.COMPETING, pause, newcomer),
    "buffer_acks_in_any_order": buffer(Variant(consumer=AcknowledgesInAnyOrder, any_order=True), CollectorMode.ORDERED),
    "buffer_stale_claims_kept": buffer(Variant(consumer=KeepsStaleClaims), None, crash),
    "buffer_data_deleted_last": buffer(Variant(clean_up=DeletesLast), CollectorMode.COMPETING, *ALL),
    "buffer_clean_up_from_memory": buffer(Variant(cleanup_after=from_memory), CollectorMode.COMPETING, *ALL),
    "buffer_unknown_removal_is_done": buffer(Variant(clean_up=TakesUnknownRemovalForDone), CollectorMode.COMPETING),
    "buffer_orphans_by_age": buffer(Variant(orphans=CollectsByAge), CollectorMode.COMPETING, collect_orphans, pause),
    "buffer_number_raised_before_listing": buffer(
        Variant(orphans=RaisesNumberBeforeListing), CollectorMode.COMPETING, collect_orphans, pause
    ),
    "buffer_never_cleaned_up": no_doubt(Variant(clean_up=NeverCleansUp)),
    "buffer_every_conflict_in_doubt": no_doubt(Variant(producer=DoubtsEveryConflict, max_producers=1)),
    "buffer_one_entry_per_key": buffer(Variant(entry=lambda key, _: key), CollectorMode.COMPETING, *ALL),
}
