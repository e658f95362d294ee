//! Converts spool records to inputs for life, each with the position that it accounts for. It is
//! pure: the same records from the same position give the same steps, which makes a restart
//! invisible.

use crate::ports::agent::{Step, StepInput};
use muleteer_backends::Line;
use muleteer_backends::Parser;
use muleteer_model::agent::event::{AgentEvent, Timed};
use muleteer_model::dispatch::Exit;
use muleteer_model::dispatch::life::Input;
use muleteer_model::event::{ExitCause, LeftProcess, Position};
use muleteer_shim::control::{Cause, Control, Left};
use muleteer_shim::spool::{Record, Stream};
use std::collections::VecDeque;

/// The length of the end of stderr that is saved to explain an exit.
const TAIL: usize = 4096;
/// The limit for an incomplete line. A longer one no longer holds back the position, because the
/// spool must be trimmed. Until then a daemon that restarts reads the line from its start.
const OPEN_LINE: u64 = 64 * 1024 * 1024;

/// At most this many events from stderr are buffered for the next step.
const MOST_ASIDES: usize = 50;

/// A stretch of stdout that was given to the parser. It has (a part of) a line that is not complete
/// yet.
#[derive(Debug, Clone, Copy)]
struct Piece {
    fed_from: u64,
    len: u64,
    offset: u64,
    skip: u32,
    end: u64,
}

pub struct Drain {
    epoch: u32,
    parser: Box<dyn Parser>,
    open: VecDeque<Piece>,
    fed: u64,
    skip: u32,
    position: Position,
    stderr: VecDeque<u8>,
    /// Events from stderr during an incomplete line of stdout.
    asides: Vec<AgentEvent>,
    /// The agent's result counts only as its last line.
    watches: bool,
    /// The last line may have been a result. A further line makes it none.
    after_result: bool,
    shim_pid: u32,
    /// The agent's end, withheld until all processes that it left are gone too, because only then
    /// the attempt is over. The position is the one after the end. Until the end is released no
    /// daemon may resume there, because it would miss the end.
    end: Option<(Position, Input)>,
    /// The end of the epoch has been read.
    pub ended: bool,
    /// The number of processes that the shim could not terminate.
    pub survivors: u32,
    /// An agent was released in this epoch.
    pub spawned: bool,
    /// The shim's clock of awake time at the newest record.
    pub awake_ms: u64,
    /// The wall clock at the newest record, in Unix milliseconds.
    wall_ms: u64,
}

impl Drain {
    /// Starts at `from`, which is a line boundary of `epoch`. With `last_line` a result counts only
    /// as the last line.
    pub fn new(epoch: u32, from: Position, mut parser: Box<dyn Parser>, last_line: bool) -> Self {
        parser.pass_over_output();
        let position =
            if from.epoch == epoch { from } else { Position { epoch, offset: 0, skip: 0 } };
        Self {
            epoch,
            parser,
            open: VecDeque::new(),
            fed: 0,
            skip: position.skip,
            position,
            stderr: VecDeque::new(),
            asides: Vec::new(),
            // The lines before `from` are unknown here.
            watches: last_line,
            after_result: last_line,
            shim_pid: 0,
            end: None,
            ended: false,
            survivors: 0,
            spawned: position.offset > 0,
            awake_ms: 0,
            wall_ms: 0,
        }
    }

    /// Returns the position of the next record to feed.
    pub fn position(&self) -> Position {
        self.position
    }

    pub fn feed(&mut self, record: &Record, steps: &mut Vec<Step>) {
        (self.awake_ms, self.wall_ms) = (record.awake_ms, record.wall_ms);
        match record.stream {
            // Output of processes that the agent left behind belongs to no turn.
            Stream::Stdout if self.end.is_some() => {}
            Stream::Stdout => self.stdout(record, steps),
            Stream::Stderr => {
                let tail = &record.bytes[record.bytes.len().saturating_sub(TAIL)..];
                self.stderr.extend(tail);
                let over = self.stderr.len().saturating_sub(TAIL);
                self.stderr.drain(..over);
                self.asides.extend(self.parser.aside(&record.bytes));
                self.asides.truncate(MOST_ASIDES);
                let before = self.position;
                self.pass(record.end.offset);
                // A step needs a position of its own. Without one, the events from stderr wait for
                // the next step.
                if self.position > before && !self.asides.is_empty() && self.end.is_none() {
                    let events = std::mem::take(&mut self.asides);
                    steps.push(self.step(self.position, StepInput::Agent(events)));
                }
            }
            Stream::Control => self.control(record, steps),
            _ => self.pass(record.end.offset),
        }
    }

    /// Adds a step without events at the newest position, so that long quiet stretches are
    /// accounted for.
    pub fn mark(&self, steps: &mut Vec<Step>) {
        if steps.last().is_none_or(|step| step.at < self.position) {
            steps.push(self.step(self.position, StepInput::Agent(vec![])));
        }
    }

    /// Returns a step with the clocks of the newest record.
    fn step(&self, at: Position, input: StepInput) -> Step {
        Step { at, input, awake_ms: self.awake_ms, wall_ms: self.wall_ms }
    }

    /// Returns the end that was withheld, after the shim died before it had terminated everything.
    pub fn release(&mut self) -> Option<Step> {
        let (at, input) = self.end.take()?;
        Some(self.step(at, StepInput::Shim(Box::new(input))))
    }

    /// Adds processes that the agent left and Muleteer killed to the end that is withheld.
    pub fn note_left(&mut self, processes: impl IntoIterator<Item = LeftProcess>) {
        if let Some((_, Input::Exited { exit, .. })) = &mut self.end {
            exit.left.extend(processes);
        }
    }

    fn stdout(&mut self, record: &Record, steps: &mut Vec<Step>) {
        let skip = std::mem::take(&mut self.skip);
        let bytes = record.bytes.get(skip as usize..).unwrap_or_default();
        self.open.push_back(Piece {
            fed_from: self.fed,
            len: bytes.len() as u64,
            offset: record.start.offset,
            skip,
            end: record.end.offset,
        });
        self.fed += bytes.len() as u64;
        let lines = self.parser.push(bytes);
        self.lines(lines, steps);
        if let Some(first) = self.open.front()
            && self.fed - first.fed_from > OPEN_LINE
        {
            self.open.clear();
            self.pass(record.end.offset);
        }
    }

    fn lines(&mut self, lines: Vec<Line>, steps: &mut Vec<Step>) {
        for line in lines {
            self.consume(line.consumed);
            let mut events: Vec<_> = line.events.into_iter().map(Timed::told).collect();
            let mut overtaken = false;
            if self.watches && !line.blank {
                let is_result = events.iter().any(|event| matches!(event, AgentEvent::Result(_)));
                overtaken = std::mem::replace(&mut self.after_result, is_result) && !is_result;
            }
            if overtaken {
                // Only the existence of output matters here.
                events.retain(is_news);
                events.insert(0, AgentEvent::Output { text: String::new() });
            }
            let events: Vec<_> =
                std::mem::take(&mut self.asides).into_iter().chain(events).collect();
            if overtaken || events.iter().any(is_news) {
                steps.push(self.step(self.position, StepInput::Agent(events)));
            }
        }
    }

    /// Moves the position to just after the byte `consumed` of the fed bytes.
    fn consume(&mut self, consumed: u64) {
        while let Some(&piece) = self.open.front() {
            if piece.fed_from + piece.len <= consumed {
                self.position = Position { epoch: self.epoch, offset: piece.end, skip: 0 };
                self.open.pop_front();
            } else {
                let into = consumed.saturating_sub(piece.fed_from);
                let skip = piece.skip + u32::try_from(into).unwrap_or(u32::MAX);
                self.position = Position { epoch: self.epoch, offset: piece.offset, skip };
                return;
            }
        }
    }

    /// Moves the position to after a record, unless a line is incomplete: then it stays at the
    /// line's start.
    fn pass(&mut self, end: u64) {
        // The position stays before a withheld end, because a successor must read it again.
        if self.open.is_empty() && self.skip == 0 && self.end.is_none() {
            self.position = Position { epoch: self.epoch, offset: end, skip: 0 };
        }
    }

    fn control(&mut self, record: &Record, steps: &mut Vec<Step>) {
        let control = Control::decode(&record.bytes);
        if control.is_final() {
            // All output of the agent comes before this record, so a last line without a newline is
            // complete.
            let lines = self.parser.finish();
            self.lines(lines, steps);
            self.open.clear();
            self.skip = 0;
        }
        let behind = Position { epoch: self.epoch, offset: record.end.offset, skip: 0 };
        if let Some(end) = self.end_told(&control, behind) {
            self.end = Some((behind, end));
            return;
        }
        self.pass(record.end.offset);
        let at = self.position;
        let (at, input) = match control {
            Control::Spawned { agent, shim, containment } => {
                self.spawned = true;
                self.shim_pid = shim.pid;
                let awake_ms = self.awake_ms;
                (
                    at,
                    Input::Spawned {
                        at,
                        pid: agent.pid,
                        shim_pid: shim.pid,
                        containment,
                        awake_ms,
                    },
                )
            }
            Control::Blocked { on, .. } => (at, Input::Blocked { at, on }),
            Control::StdinWritten { idem, ok: true } => {
                steps.push(self.step(at, StepInput::Written(idem)));
                return;
            }
            Control::Ended { survivors, left } => {
                self.survivors = survivors;
                self.note_left(
                    left.into_iter().map(|Left { pid, name }| LeftProcess { pid, name }),
                );
                self.ended = true;
                match self.end.take() {
                    Some(held) => held,
                    None => return,
                }
            }
            _ => return,
        };
        steps.push(self.step(at, StepInput::Shim(Box::new(input))));
    }

    /// Returns the agent's end, if this record reports it.
    fn end_told(&self, control: &Control, at: Position) -> Option<Input> {
        match control {
            Control::StartFailed { errno, text } => {
                let error = format!("{text} (errno {errno})");
                Some(Input::StartFailed { at: Some(at), epoch: self.epoch, error, permanent: true })
            }
            Control::Exited { code, signal, cause } => {
                let cause = match cause {
                    Cause::Terminated => ExitCause::Terminated,
                    Cause::ShimPolicy => ExitCause::ShimPolicy,
                    Cause::LeaseExpired => ExitCause::LeaseExpired,
                    Cause::Exited | Cause::Unknown => ExitCause::Exited,
                };
                let tail: Vec<u8> = self.stderr.iter().copied().collect();
                let stderr_tail = String::from_utf8_lossy(&tail).into_owned();
                let exit = Exit { code: *code, signal: *signal, cause, stderr_tail, left: vec![] };
                Some(Input::Exited { at, epoch: self.epoch, exit, awake_ms: self.awake_ms })
            }
            _ => None,
        }
    }
}

/// Whether life needs the event. Plain output and events that no parser knows stay in the spool.
fn is_news(event: &AgentEvent) -> bool {
    if let AgentEvent::Subagent { event, .. } = event {
        return matches!(**event, AgentEvent::ToolCall { .. } | AgentEvent::ToolResult { .. });
    }
    !matches!(
        event,
        AgentEvent::Output { .. }
            | AgentEvent::Unknown { .. }
            | AgentEvent::ToolOutput { .. }
            | AgentEvent::Process { .. }
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use muleteer_backends::by_name;
    use muleteer_shim::spool::Cursor;

    fn record(stream: Stream, start: u64, bytes: &[u8]) -> Record {
        let end = start + bytes.len() as u64 + 10;
        let (start, end) = (Cursor { epoch: 1, offset: start }, Cursor { epoch: 1, offset: end });
        Record { seq: 0, stream, wall_ms: 0, awake_ms: 0, bytes: bytes.to_vec(), start, end }
    }

    fn texts(steps: &[Step]) -> Vec<String> {
        steps
            .iter()
            .flat_map(|step| match &step.input {
                StepInput::Agent(events) => events.clone(),
                StepInput::Shim(_) | StepInput::Written(_) => vec![],
            })
            .filter_map(|event| match event {
                AgentEvent::Text { text, .. } => Some(text),
                _ => None,
            })
            .collect()
    }

    /// A restart at any reported position sees each later line, and no earlier one again. Lines are
    /// cut over records in every way.
    #[test]
    fn a_restart_at_any_reported_position_sees_exactly_the_rest() {
        let line =
            |n: u32| format!("output {n}\nmore\n{{\"type\":\"text\",\"text\":\"line {n}\"}}\n");
        let all: Vec<u8> = (0..6).map(line).collect::<String>().into_bytes();
        for size in [1, 3, 7, 20, 31, 64, all.len()] {
            let mut records = vec![];
            let mut offset = 0;
            for (n, chunk) in all.chunks(size).enumerate() {
                let made = record(Stream::Stdout, offset, chunk);
                offset = made.end.offset;
                records.push(made);
                if n % 2 == 0 {
                    let noise = record(Stream::Stderr, offset, b"warning\n");
                    offset = noise.end.offset;
                    records.push(noise);
                }
            }
            let parser = || by_name("subprocess").unwrap().parser();
            let run = |from: Position| {
                let mut drain = Drain::new(1, from, parser(), false);
                let mut steps = vec![];
                for record in records.iter().filter(|record| record.start.offset >= from.offset) {
                    drain.feed(record, &mut steps);
                }
                steps
            };
            let whole = run(Position { epoch: 1, offset: 0, skip: 0 });
            assert_eq!(texts(&whole).len(), 6, "size {size}");
            for (seen, step) in whole.iter().enumerate() {
                let rest = run(step.at);
                assert_eq!(texts(&rest), texts(&whole)[seen + 1..], "size {size}, after {seen}");
            }
        }
    }

    /// A line after a result is reported once; white space and stderr are no lines. This holds
    /// however the lines are cut into records, and wherever a daemon restarts.
    #[test]
    fn line_after_a_result_is_reported() {
        let result = "{\"type\":\"result\",\"status\":\"success\",\"summary\":\"s\"}\n";
        let text = "{\"type\":\"text\",\"text\":\"a\"}\n";
        let told = |step: &Step| match &step.input {
            StepInput::Agent(events) => events
                .iter()
                .map(|event| match event {
                    AgentEvent::Output { .. } => '+',
                    AgentEvent::Result(_) => 'r',
                    _ => 't',
                })
                .collect(),
            StepInput::Shim(_) | StepInput::Written(_) => String::new(),
        };
        for (printed, expected) in [
            (format!("a\n{result}\n \n"), "r"),
            (format!("{result}done\nand more\n"), "r+"),
            (format!("{result}{text}{text}"), "r+tt"),
            (format!("{result}{{\"type\":\"tool_call\"}}\n"), "r+"),
            (format!("{result}x\n{result}\n"), "rr"),
            (format!("{result}{result}x"), "rr+"),
        ] {
            for size in [1, 5, 40, printed.len()] {
                let mut records = vec![];
                let mut offset = 0;
                for chunk in printed.as_bytes().chunks(size) {
                    for (stream, bytes) in
                        [(Stream::Stdout, chunk), (Stream::Stderr, &b"for people\n"[..])]
                    {
                        let made = record(stream, offset, bytes);
                        offset = made.end.offset;
                        records.push(made);
                    }
                }
                let exited =
                    Control::Exited { code: Some(0), signal: None, cause: Cause::Exited }.encode();
                records.push(record(Stream::Control, offset, &exited));
                let run = |from: Position| {
                    let mut drain =
                        Drain::new(1, from, by_name("subprocess").unwrap().parser(), true);
                    let mut steps = vec![];
                    for record in records.iter().filter(|record| record.start.offset >= from.offset)
                    {
                        drain.feed(record, &mut steps);
                    }
                    steps
                };
                let whole = run(Position { epoch: 1, offset: 0, skip: 0 });
                // At the start the earlier lines are unknown, and a newer result replaces the older
                // one.
                let meant =
                    |steps: &[Step]| steps.iter().map(told).collect::<String>().replace("+r", "r");
                let all = meant(&whole);
                assert_eq!(all.trim_start_matches('+'), expected, "{printed:?} by {size}");
                for (seen, step) in whole.iter().enumerate() {
                    let (rest, expected) = (meant(&run(step.at)), meant(&whole[seen + 1..]));
                    let again = rest.strip_prefix('+').unwrap_or(&rest);
                    assert!(
                        rest == expected || again == expected,
                        "{printed:?} by {size}: {rest} for {expected}"
                    );
                }
            }
        }
    }

    /// Events from stderr have a position of their own, or wait until the incomplete line of stdout
    /// has one. A restart at a durable position misses none of them.
    #[test]
    fn stderr_warnings_keep_their_position() {
        let broken =
            b"WARN codex_mcp::rmcp_client: MCP server startup failed server_name=\"x\" error=no\n";
        let text = b"{\"type\":\"item.completed\",\"item\":{\"id\":\"i\",\
                     \"type\":\"agent_message\",\"text\":\"a\"}}\n";
        let (half, rest) = text.split_at(20);
        let parts: [(Stream, &[u8]); 6] = [
            (Stream::Stderr, &broken[..30]),
            (Stream::Stderr, &broken[30..]),
            (Stream::Stdout, half),
            (Stream::Stderr, broken),
            (Stream::Stderr, b"what is for people\n"),
            (Stream::Stdout, rest),
        ];
        let mut records = vec![];
        let mut offset = 0;
        for (stream, bytes) in parts {
            let made = record(stream, offset, bytes);
            offset = made.end.offset;
            records.push(made);
        }
        let run = |from: Position| {
            let mut drain = Drain::new(1, from, by_name("codex").unwrap().parser(), false);
            let mut steps = vec![];
            for record in records.iter().filter(|record| record.start.offset >= from.offset) {
                drain.feed(record, &mut steps);
            }
            let events = |step: &Step| match &step.input {
                StepInput::Agent(events) => events.clone(),
                StepInput::Shim(_) | StepInput::Written(_) => vec![],
            };
            steps.iter().map(|step| (step.at, events(step))).collect::<Vec<_>>()
        };
        let whole = run(Position { epoch: 1, offset: 0, skip: 0 });
        let counts: Vec<_> = whole.iter().map(|(_, events)| events.len()).collect();
        assert_eq!(counts, [1, 2], "{whole:?}");
        assert!(
            matches!(&whole[1].1[..], [AgentEvent::Notice { .. }, AgentEvent::Text { .. }]),
            "{whole:?}"
        );
        assert_eq!(run(whole[0].0)[..], whole[1..]);
    }

    /// A daemon may die between the agent's end and the end of all processes that it left. Its
    /// successor must read the agent's end, wherever the newest durable position is. Output in
    /// between is not the agent's.
    #[test]
    fn withheld_exit_is_read_after_a_restart() {
        let result = b"{\"type\":\"result\",\"status\":\"success\",\"summary\":\"s\"}\n".as_slice();
        let failed = b"{\"type\":\"result\",\"status\":\"failure\",\"summary\":\"s\"}\n".as_slice();
        let exited = Control::Exited { code: Some(0), signal: None, cause: Cause::Exited };
        let not_begun = Control::StartFailed { errno: 2, text: "no such program".into() };
        for (printed, last) in [(result, exited), (b"".as_slice(), not_begun)] {
            let mut records = vec![];
            let mut add = |made: fn(u64, &[u8]) -> Record, bytes: &[u8]| {
                let start = records.last().map_or(0, |record: &Record| record.end.offset);
                records.push(made(start, bytes));
            };
            let out = |start, bytes: &[u8]| record(Stream::Stdout, start, bytes);
            let err = |start, bytes: &[u8]| record(Stream::Stderr, start, bytes);
            let word = |start, bytes: &[u8]| record(Stream::Control, start, bytes);
            add(out, printed);
            add(word, &last.encode());
            add(out, failed);
            add(err, b"cannot be ended\n");
            add(word, &Control::Ended { survivors: 0, left: vec![] }.encode());
            let run = |from: Position| {
                let mut drain = Drain::new(1, from, by_name("subprocess").unwrap().parser(), false);
                let mut steps = vec![];
                for record in records.iter().filter(|record| record.start.offset >= from.offset) {
                    drain.feed(record, &mut steps);
                    // This simulates the end of a batch.
                    drain.mark(&mut steps);
                }
                assert!(drain.ended);
                steps
            };
            let whole = run(Position { epoch: 1, offset: 0, skip: 0 });
            let results = |steps: &[Step]| {
                steps
                    .iter()
                    .filter(|step| matches!(&step.input, StepInput::Agent(events) if !events.is_empty()))
                    .count()
            };
            assert_eq!(results(&whole), usize::from(!printed.is_empty()), "{whole:?}");
            let places: Vec<_> = whole
                .iter()
                .take_while(|step| matches!(step.input, StepInput::Agent(_)))
                .map(|step| step.at)
                .collect();
            assert!(!places.is_empty());
            for place in places {
                let rest = run(place);
                let ends = rest.iter().filter(|step| matches!(&step.input, StepInput::Shim(input) if matches!(**input, Input::Exited { .. } | Input::StartFailed { .. })));
                assert_eq!(ends.count(), 1, "after {place:?}: {rest:?}");
            }
        }
    }
}
