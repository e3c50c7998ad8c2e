// Kinds of events, as the chips of the events page and the shapes beside each line tell them apart.
// Invariant, held by a test: every type of the catalogue is of one kind, so that chips count all events.

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
  node: ["NodeReported", "NodeObserved", "UsageRecorded"],
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
    "PricesLearnt",
  ],
};
/** What people look for; of `DeviceHealthChanged` a mark tells recoveries apart. */
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

/** The kind of a type of event; `other` for one that only a newer gateway knows. */
export const kindOf = type => KIND_OF.get(type) ?? "other";

/** The kinds that have a chip: `other` where there is such an event. */
export const chipsOf = counts => [...Object.keys(KINDS), ...(counts.other ? ["other"] : [])];

/** How many events of each kind there are, from counts by type. */
export function countKinds(counts) {
  const found = Object.fromEntries([...Object.keys(KINDS), "other"].map(kind => [kind, 0]));
  for (const [type, count] of Object.entries(counts)) found[kindOf(type)] += count;
  return found;
}
