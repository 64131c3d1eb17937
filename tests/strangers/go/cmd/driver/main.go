// Command driver lets "tidelog conformance" check the Go client: it reads
// commands as lines of JSON, does each with the library, and answers each with
// a line.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"example.org/tidelog"
)

// The suite waits for an answer for 60 s.
const commandTimeout = 57 * time.Second

// driver has what is open, by the names that the suite gives.
type driver struct {
	logs      map[string]*tidelog.Log
	producers map[string]*producer
	consumers map[string]*consumer
}

// producer is an open producer, with what was submitted since the last flush.
type producer struct {
	*tidelog.Producer
	submitted []outcome
}

// outcome is a record that was submitted, or the error of submitting it.
type outcome struct {
	pending *tidelog.Pending
	err     error
}

// consumer is an open consumer, with records that came before an error.
type consumer struct {
	source
	kept []tidelog.Record
}

// source is a consumer or a member of a group.
type source interface {
	Next(ctx context.Context, most int) ([]tidelog.Record, error)
	Pause(partitions ...tidelog.TopicPartition) error
	Resume(partitions ...tidelog.TopicPartition) error
	Seek(ctx context.Context, at tidelog.Place, partitions ...tidelog.TopicPartition) error
	Assignment() []tidelog.TopicPartition
}

func main() {
	d := &driver{
		logs: map[string]*tidelog.Log{}, producers: map[string]*producer{}, consumers: map[string]*consumer{},
	}
	if err := d.serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve answers commands until the input ends.
func (d *driver) serve(input io.Reader, output io.Writer) error {
	lines := bufio.NewReaderSize(input, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 1 {
			answer, err := json.Marshal(d.answer(line))
			if err != nil {
				return err
			}
			if _, err := output.Write(append(answer, '\n')); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// answer does one command.
func (d *driver) answer(line []byte) map[string]any {
	var head struct {
		ID any    `json:"id"`
		Do string `json:"do"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return map[string]any{"id": nil, "error": errorFields(err)}
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	do := commands[head.Do]
	if do == nil {
		do = func(*driver, context.Context, *command) (any, error) {
			return nil, &tidelog.Error{Code: tidelog.CodeUnsupported, Message: "no command " + head.Do}
		}
	}
	c := &command{}
	err := json.Unmarshal(line, c)
	if err != nil {
		err = &tidelog.Error{Code: tidelog.CodeInvalidArgument, Message: err.Error()}
		return map[string]any{"id": head.ID, "error": errorFields(err)}
	}
	ok, err := do(d, ctx, c)
	if err != nil {
		return map[string]any{"id": head.ID, "error": errorFields(err)}
	}
	if ok == nil {
		ok = struct{}{}
	}
	return map[string]any{"id": head.ID, "ok": ok}
}
