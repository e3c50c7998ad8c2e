// Kinds of events, as the chips of the events page and the shapes beside each line tell them apart.

export const KINDS = {
  pod: ["PodSubmitted", "PodChanged", "PodGone", "PodRejected", "PodGroupObserved", "PodGroupGone", "ResizeAsked"],
  placement: ["PodPlaced", "PodBound", "SharesAllocated", "PodAdopted", "PodResized"],
  refusal: ["PodRefused", "PlacementVoided", "PodEvicted", "BindFailed", "AllocationFailed", "ResizeRefused"],
  health: ["DeviceHealthChanged", "NodeGone", "NodeSilent", "NodeHeard"],
  node: ["NodeReported", "NodeObserved", "UsageRecorded"],
  operator: ["NodeCordoned", "NodeUncordoned", "DeviceCordoned", "DeviceUncordoned", "PolicyChanged", "ConfigurationChanged", "LedgerRebuilt"],
};
const KIND_OF = new Map(Object.entries(KINDS).flatMap(([kind, types]) => types.map(type => [type, kind])));

/** The kind of a type of event; `other` for what has none of its own. */
export const kindOf = type => KIND_OF.get(type) ?? "other";

/** How many events of each kind there are, from counts by type. */
export function countKinds(counts) {
  const found = Object.fromEntries([...Object.keys(KINDS), "other"].map(kind => [kind, 0]));
  for (const [type, count] of Object.entries(counts)) found[kindOf(type)] += count;
  return found;
}
