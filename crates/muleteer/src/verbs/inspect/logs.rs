//! `logs`: shows an agent's output from its spool on disk, with or without a daemon.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::file_watch::FileWatch;
use crate::client::interrupt::until_unheard;
use crate::client::live_fleet::LiveFleet;
use crate::client::spool_lines::{Piece, SpoolLines};
use crate::render::agent;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::Position;
use muleteer_protocol::ErrorCode;
use muleteer_shim::spool::{Cursor, Reader, State, Stream};
use muleteer_supervisor::ports::shim_command::shown;
use std::path::{Path, PathBuf};

/// The number of bytes that are read from the spool at a time.
const CHUNK: usize = 256 << 10;

const EXAMPLES: &str = "\
Examples:
  muleteer logs k3f9
  muleteer logs k3f9 -f
  muleteer logs k3f9 --raw | muleteer parse claude-code

Shows the retained end of the output (by default the last 64 MiB of each agent). --follow ends \
when the dispatch has ended.";

/// Show what an agent printed and did
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatch: its id, or the beginning of it
    id: String,
    /// Print new output as it arrives, until the dispatch has ended
    #[arg(short, long)]
    follow: bool,
    /// Print the agent's stdout unchanged
    #[arg(long)]
    raw: bool,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    if args.raw && context.out.json {
        return Err(Failure::new(
            ErrorCode::Usage,
            "--raw and --json exclude each other: give one of them",
        ));
    }
    let mut fleet = LiveFleet::open(context)?;
    let dispatch = fleet.find(&args.id)?;
    let id = dispatch.id.to_string();
    let folder = context.paths.agent(&id);
    if dispatch.is_finished() && !folder.exists() {
        context
            .out
            .note(format!("the output of {id} was deleted: {} no longer exists", folder.display()));
    }
    let backend = muleteer_backends::by_name(&dispatch.created.backend)
        .map_err(|error| Failure::of(error.code(), &error).hint(error.hint()).dispatch(&id))?;
    let mut lines = SpoolLines::new(backend);
    if dispatch.created.can_ask {
        lines = lines.answered_by(&dispatch.created.permissions, dispatch.created.directory());
    }
    lines.know(prompts(&dispatch));
    let title = dispatch.created.title.clone();
    if !args.raw
        && !context.out.json
        && let Some(title) = &title
    {
        // The output of most backends does not repeat the task.
        let at_ms = dispatch.created_at.as_millisecond().try_into().unwrap_or(0);
        context.out.line(agent::task(at_ms, title))?;
    }
    let mut show = |piece: Piece| show(context, args.raw, piece);
    if args.follow {
        let following = follow(context, &mut fleet, &id, &mut lines, args.raw, &mut show);
        return until_unheard(context, &format!("{id} continues"), following).await;
    }
    let spool = context.paths.spool(&id);
    let mut at = Place::new(&spool);
    at.recorded = dispatch.is_finished().then_some(dispatch.position);
    if context.out.json {
        return document(context, (&id, title), &mut at, &mut lines);
    }
    while let Some(pieces) = at.pieces(&mut lines, args.raw)? {
        pieces.into_iter().try_for_each(&mut show)?;
    }
    lines.finish().into_iter().filter(|_| !args.raw).try_for_each(&mut show)?;
    Ok(Exit::Done)
}

/// Returns the names by which the records of the spool know the prompts of a dispatch.
fn prompts(dispatch: &Dispatch) -> Vec<String> {
    dispatch.prompts.iter().map(|prompt| shown(&prompt.key)).collect()
}

fn document(
    context: &Context,
    (id, title): (&str, Option<String>),
    at: &mut Place,
    lines: &mut SpoolLines,
) -> Result<Exit, Failure> {
    let out = &context.out;
    let title = serde_json::json!(title);
    out.text(format!("{{\"dispatch_id\":\"{id}\",\"title\":{title},\"events\":["))?;
    let mut first = true;
    let mut put = |pieces: Vec<Piece>| {
        pieces.into_iter().filter_map(|piece| piece.json()).try_for_each(|value| {
            let comma = if std::mem::take(&mut first) { "\n" } else { ",\n" };
            out.text(format!("{comma}{value}"))
        })
    };
    loop {
        match at.pieces(lines, false) {
            Ok(Some(pieces)) => put(pieces)?,
            Ok(None) => break,
            Err(failure @ Failure::Told(_)) => {
                // The document has begun: the error becomes a key of it.
                put(lines.finish())?;
                out.line(format!("\n],\"error\":{}}}", failure.document()["error"]))?;
                return Ok(failure.exit());
            }
            Err(closed) => return Err(closed),
        }
    }
    put(lines.finish())?;
    out.line("\n]}")?;
    Ok(Exit::Done)
}

async fn follow(
    context: &Context,
    fleet: &mut LiveFleet,
    id: &str,
    lines: &mut SpoolLines,
    raw: bool,
    show: &mut dyn FnMut(Piece) -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    let spool = context.paths.spool(id);
    let mut watch = FileWatch::on(&[&context.paths.state_dir])?;
    let mut spool_watched = false;
    let mut at = Place::new(&spool);
    loop {
        // A queued dispatch has no spool yet; an event announces its start.
        if !spool_watched && spool.is_dir() {
            watch.add(&spool)?;
            spool_watched = true;
        }
        // The fleet is refreshed before the spool is read, so that no output before the end is
        // missed.
        fleet.refresh()?;
        let dispatch = fleet.find(id)?;
        lines.know(prompts(&dispatch));
        let ended = dispatch.is_finished();
        at.recorded = ended.then_some(dispatch.position);
        while let Some(pieces) = at.pieces(lines, raw)? {
            pieces.into_iter().try_for_each(&mut *show)?;
        }
        if ended {
            lines.finish().into_iter().filter(|_| !raw).try_for_each(&mut *show)?;
            context.out.note(format!("{id} has ended: {}", fleet.find(id)?.state()));
            return Ok(Exit::Done);
        }
        watch.changed().await;
    }
}

/// The output of an agent, shown in parts between other output.
pub struct Printed {
    at: Place,
    lines: SpoolLines,
}

impl std::fmt::Debug for Printed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Printed")
    }
}

impl Printed {
    pub fn of(context: &Context, id: &str, backend: &str) -> Result<Self, Failure> {
        let backend = muleteer_backends::by_name(backend)
            .map_err(|error| Failure::of(error.code(), &error).dispatch(id))?;
        Ok(Self { at: Place::new(&context.paths.spool(id)), lines: SpoolLines::new(backend) })
    }

    /// Shows the next part of the new output. Returns false if there is none at present.
    pub fn show_some(&mut self, context: &Context) -> Result<bool, Failure> {
        let Some(pieces) = self.at.pieces(&mut self.lines, false)? else { return Ok(false) };
        pieces.into_iter().try_for_each(|piece| show(context, false, piece))?;
        Ok(true)
    }

    /// Shows all remaining output. The agent must have ended: a running one may print forever.
    pub fn show_rest(&mut self, context: &Context) -> Result<(), Failure> {
        while self.show_some(context)? {}
        self.lines.finish().into_iter().try_for_each(|piece| show(context, false, piece))
    }
}

fn show(context: &Context, raw: bool, piece: Piece) -> Result<(), Failure> {
    let out = &context.out;
    match piece {
        Piece::Bytes { stream: Stream::Stdout, bytes, .. } if raw => out.bytes(&bytes),
        Piece::Bytes { .. } => Ok(()),
        // Lost records are reported on stderr, because stdout must contain only the agent's bytes.
        Piece::Gap { message } if raw || !out.json => {
            out.note(format!("part of the log is lost: {message}"));
            Ok(())
        }
        piece if out.json => piece.json().map_or(Ok(()), |value| out.line(value.to_string())),
        Piece::Event { at_ms, event, .. } => {
            agent::lines(at_ms, &event, out.verbose > 0).map_or(Ok(()), |text| out.line(text))
        }
        Piece::Stderr { at_ms, text } => out.line(agent::stderr(at_ms, &text)),
        Piece::Gap { .. } => Ok(()),
    }
}

/// The position up to which a spool has been read.
struct Place {
    reader: Reader,
    spool: PathBuf,
    cursor: Cursor,
    done: bool,
    /// The newest output that the events of an ended dispatch have.
    recorded: Option<Position>,
}

impl Place {
    fn new(spool: &Path) -> Self {
        let cursor = Cursor::start_of(0);
        let reader = Reader::open(spool);
        Self { reader, spool: spool.into(), cursor, done: false, recorded: None }
    }

    /// Returns what was written since the last call, in parts. `None` when everything was handed
    /// over; call again after a change.
    fn pieces(&mut self, lines: &mut SpoolLines, raw: bool) -> Result<Option<Vec<Piece>>, Failure> {
        if std::mem::take(&mut self.done) {
            return Ok(self.lost_end().map(|message| vec![Piece::Gap { message }]));
        }
        match self.reader.read(self.cursor, CHUNK) {
            Ok(batch) => {
                self.cursor = batch.next;
                self.done = batch.state != State::More;
                let records = batch.records.into_iter();
                Ok(Some(if raw {
                    records.map(Piece::raw).collect()
                } else {
                    records.flat_map(|record| lines.push(record)).collect()
                }))
            }
            Err(error) => match error.resume().filter(|resume| *resume > self.cursor) {
                Some(resume) => {
                    self.cursor = resume;
                    // Once the retained tail has been cut, its beginning is always missing.
                    Ok(Some(vec![Piece::Gap { message: crate::cli::failure::chain(&error) }]))
                }
                None => Err(Failure::of(ErrorCode::SpoolDamaged, &error)
                    .file(&self.spool)
                    .hint("check the disk and restore this file of the output from a backup")),
            },
        }
    }

    /// Tells once if the output ends before the place that the events know. Its last record may
    /// then look like one that a killed shim left in part.
    fn lost_end(&mut self) -> Option<String> {
        let known = self.recorded.take()?;
        let found = (self.cursor.epoch, self.cursor.offset);
        if known.offset == 0 || found >= (known.epoch, known.offset) || !self.spool.is_dir() {
            return None;
        }
        self.done = true;
        Some(format!(
            "the end of the output is missing in {}: it ends at byte {} of its part {}, but the \
             events know it up to byte {} of part {}",
            self.spool.display(),
            self.cursor.offset,
            self.cursor.epoch,
            known.offset,
            known.epoch
        ))
    }
}
