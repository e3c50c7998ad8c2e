"""The auth callout: nats-server calls it at every connect to authenticate the ServiceAccount.

    CONNECT (name, token) ──► nats-server ──► callout ──► TokenReview at the API server
                                   ◄── a signed, short-lived user with its role's permissions

The callout keeps no state and reads only these requests; nats-server takes the first answer. While
no callout runs, existing connections stay and new ones wait. Invariants: no log and no answer
contains a token; only our log has the reason for a refusal."""
