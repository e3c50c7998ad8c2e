// Read along in Go: every placement from the ledger's beginning, in order, and the chain.
//
//	go run . nats://auditor:PASSWORD@127.0.0.1:4222 [LIMIT]
//	go run . -nkey anna.nk nats://anna@127.0.0.1:4222 [LIMIT]
//
// The second form uses a key from `apportion user add auditor anna`.
//
// The program reads with a consumer that needs no acknowledgements and expires soon after the
// program ends. Each placement names the SHA-256 of the previous one on its node, so a reader from
// the beginning sees if one was changed, left out or inserted.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

type event struct {
	Type string `json:"type"`
	Time string `json:"time"`
	Data struct {
		Previous string `json:"previous"`
	} `json:"data"`
}

func main() {
	nkey := flag.String("nkey", "", "`FILE` with the key of the user, in place of a password")
	flag.Parse()
	if flag.NArg() < 1 {
		log.Fatal("the URL is missing; use the one that `apportion up` prints, with the auditor's password, " +
			"or nats://NAME@HOST:PORT and -nkey FILE")
	}
	limit, _ := strconv.Atoi(flag.Arg(1))
	broken, err := readAlong(flag.Arg(0), *nkey, limit)
	if errors.Is(err, nats.ErrAuthorization) {
		log.Fatal(refusal(*nkey))
	}
	if err != nil {
		log.Fatal(err)
	}
	if broken > 0 {
		os.Exit(1)
	}
}

// refusal returns the error for a rejected login, with its fix.
func refusal(nkey string) string {
	if nkey != "" {
		return "the server rejected the key in " + nkey + "; check the user with `apportion user list`"
	}
	return "the server rejected this user; put the password into the URL, as `apportion up` prints it, " +
		"or use -nkey FILE with a key from `apportion user add auditor NAME`"
}

// readAlong prints each event of placement.<node>, and returns the number of broken links of the chain.
func readAlong(address, nkey string, limit int) (broken int, err error) {
	server, err := url.Parse(address)
	if err != nil {
		return 0, err
	}
	who := server.User.Username()
	if who == "" {
		return 0, errors.New("the URL has no user; write nats://NAME@HOST:PORT")
	}
	// A user's inboxes and consumers must begin with its own name.
	options := []nats.Option{nats.CustomInboxPrefix("_INBOX_" + who)}
	if nkey != "" {
		key, err := nats.NkeyOptionFromSeed(nkey)
		if err != nil {
			return 0, fmt.Errorf("cannot use the key in %s: %w", nkey, err)
		}
		options = append(options, key)
		server.User = nil // the client would treat a name without a password as a token
	}
	client, err := nats.Connect(server.String(), options...)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	messages, err := placements(client, who+"-1")
	if err != nil {
		return 0, err
	}
	defer messages.Stop()
	newest := map[string]string{}
	for seen := uint64(1); limit == 0 || seen <= uint64(limit); seen++ {
		message, err := messages.Next()
		if err != nil {
			return broken, err
		}
		metadata, err := message.Metadata()
		if err != nil {
			return broken, err
		}
		if metadata.Sequence.Consumer != seen {
			return broken, fmt.Errorf("a message was lost after %d; start again", seen-1)
		}
		var placed event
		if err := json.Unmarshal(message.Data(), &placed); err != nil {
			return broken, err
		}
		node := message.Subject()[strings.LastIndex(message.Subject(), ".")+1:]
		note := ""
		if placed.Data.Previous != newest[node] {
			broken++
			note = " CHAIN BROKEN"
		}
		digest := sha256.Sum256(message.Data())
		newest[node] = hex.EncodeToString(digest[:])
		kind := placed.Type[strings.LastIndex(placed.Type, "/")+1:]
		fmt.Println(metadata.Sequence.Stream, placed.Time, kind, node+note)
	}
	return broken, nil
}

func placements(client *nats.Conn, name string) (jetstream.MessagesContext, error) {
	ctx, done := context.WithTimeout(context.Background(), 10*time.Second)
	defer done()
	api, err := jetstream.New(client)
	if err != nil {
		return nil, err
	}
	consumer, err := api.CreateConsumer(ctx, "APPORTION", jetstream.ConsumerConfig{
		Name:              name,
		FilterSubject:     "apportion.v1.placement.>",
		AckPolicy:         jetstream.AckNonePolicy,
		InactiveThreshold: 30 * time.Second,
		MemoryStorage:     true,
	})
	if err != nil {
		return nil, err
	}
	return consumer.Messages()
}
