"""Says who a ServiceAccount is on the bus, and what it may do: nats-server asks at every connect.

    CONNECT (name, token) ──► nats-server ──► callout ──► TokenReview at the API server
                                   ◄── a short-lived user, signed, with the table's permissions

It keeps nothing: any number of replicas answer side by side, and the server takes the first answer.
While none is there, who is connected goes on and who is not waits. It writes no event, and hears
nothing but these questions. Invariants: a token is part of no log and no answer; who is refused is
logged with the reason, and told none."""
