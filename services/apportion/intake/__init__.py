"""Appends what agents report, once it is judged: no agent writes the ledger itself.

    agent ──► apportion.intake.NODE ──► its lane, bounded and paced ──► judged ──► LEDGER
          ◄── a revision, a refusal by name, or "once more in a while" ◄──┘

Agents run on every node, beside what people run there, and a ledger that believed each of them
would fall with the weakest. So the server lets an agent ask on its node's subject and nothing else,
and an intake, which follows the whole ledger, appends in its place: with an id of its own making,
on the subjects of that very node. Start as many as you like: they share what is asked.

Invariants: what one agent sends delays no other; nothing is decoded that its lane has no room for;
what was appended and not answered is asked again under the same id, and stands there once.

The only one that appends inventory, allocations and usage."""
