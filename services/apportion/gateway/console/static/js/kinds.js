// Kinds of events: the chips of the events page and the shape next to each row.
// Invariant, checked by a test: each type of the catalogue has exactly one kind, so chips count all events.

export const KINDS = {
  pod: [
    "PodSubmitted",
    "PodChanged",
    "PodGone",
    "PodRejected",
    "PodGroupObserved",
    "PodGroupGone",
    "ResizeAsked",
  ],
  placement: ["PodPlaced", "PodBound", "SharesAllocated", "PodAdopted", "PodResized"],
  refusal: [
    "PodRefused",
    "PlacementVoided",
    "PodEvicted",
    "BindFailed",
    "AllocationFailed",
    "ResizeRefused",
  ],
  health: [
    "DeviceHealthChanged",
    "NodeGone",
    "NodeSilent",
    "NodeHeard",
    "ReportRefused",
    "DifferenceFound",
    "ShareBreached",
  ],
  node: ["NodeReported", "DevicesRegistered", "NodeObserved", "UsageRecorded"],
  operator: [
    "NodeCordoned",
    "NodeUncordoned",
    "DeviceCordoned",
    "DeviceUncordoned",
    "NodeCordonLifted",
    "DeviceCordonLifted",
    "PolicyChanged",
    "ConfigurationChanged",
    "LedgerRebuilt",
    "FormatEnabled",
    "RevisionSetAside",
  ],
  cluster: [
    "QueueObserved",
    "QuotaObserved",
    "QuotaGone",
    "NamespaceObserved",
    "NamespaceGone",
    "BudgetObserved",
    "BudgetGone",
    "VolumeClaimObserved",
    "VolumeClaimGone",
    "LimitsChecked",
    "NodesReserved",
    "PricesLearnt",
  ],
};
/** Types shown in red. A recovery is also a `DeviceHealthChanged`; its mark tells it apart. */
export const RED = new Set([
  "AllocationFailed",
  "BindFailed",
  "DeviceHealthChanged",
  "NodeGone",
  "NodeSilent",
  "PlacementVoided",
  "PodEvicted",
  "PodRefused",
  "ReportRefused",
  "ResizeRefused",
]);
const KIND_OF = new Map(
  Object.entries(KINDS).flatMap(([kind, types]) => types.map(type => [type, kind])),
);

/** The kind of an event type; `other` for a type that only a newer gateway knows. */
export const kindOf = type => KIND_OF.get(type) ?? "other";

/** The kinds with a chip; `other` only if there are such events. */
export const chipsOf = counts => [...Object.keys(KINDS), ...(counts.other ? ["other"] : [])];

/** Event counts by kind, from counts by type. */
export function countKinds(counts) {
  const found = Object.fromEntries([...Object.keys(KINDS), "other"].map(kind => [kind, 0]));
  for (const [type, count] of Object.entries(counts)) found[kindOf(type)] += count;
  return found;
}
