//! A scripted model on loopback, which speaks the APIs of Anthropic (Messages), OpenAI (Responses,
//! Chat Completions) and Gemini. With it system tests drive the real agent CLIs without network and
//! model.
//!
//! Each *main* request (a `POST` of one of the APIs that declares tools) takes one step. Steps come
//! from a list, whose last step repeats, or from a player, which makes each step from the request
//! ([`ModelServer::playing`]). Requests without tools (titles, quota probes) get a short text and
//! use up no step. The server stores every request for assertions.
//!
//! It uses plain threads and blocking sockets: a test's server has a handful of connections, and a
//! hanging step is then just a thread that waits.

mod answer;
mod chat;
mod gemini;
pub(crate) mod http;
mod responses;
mod step;
mod words;

pub use step::Step;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// One request as it arrived.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, or `Null` if it is no JSON.
    pub body: Value,
    /// Whether the request took a step of the script.
    pub main: bool,
}

/// The server. Dropping it cuts every connection and waits for its threads.
#[derive(Debug)]
pub struct ModelServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    script: Script,
    state: Mutex<State>,
    stopped: Condvar,
}

enum Script {
    Steps(Vec<Step>),
    Player(Box<dyn Fn(&Request) -> Step + Send + Sync>),
}

impl fmt::Debug for Script {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => steps.fmt(out),
            Self::Player(_) => out.write_str("a player"),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    requests: Vec<Request>,
    connections: Vec<TcpStream>,
    workers: Vec<JoinHandle<()>>,
    stopping: bool,
    released: bool,
    /// The marks that steps have set; other steps wait for them.
    marks: BTreeSet<String>,
    ids: u64,
}

impl ModelServer {
    /// Starts a server on a free loopback port.
    ///
    /// # Panics
    /// When the script is empty or no socket can be had: a test cannot continue then.
    pub fn start(steps: impl IntoIterator<Item = Step>) -> Self {
        let steps: Vec<Step> = steps.into_iter().flat_map(Step::repeated).collect();
        assert!(!steps.is_empty(), "a script needs a step");
        Self::listening(Script::Steps(steps))
    }

    /// Starts a model that makes each answer from its request, for many agents at once. A player's
    /// answer may depend only on the request, because a client may repeat a request.
    ///
    /// # Panics
    /// When no socket can be had.
    pub fn playing(player: impl Fn(&Request) -> Step + Send + Sync + 'static) -> Self {
        Self::listening(Script::Player(Box::new(player)))
    }

    fn listening(script: Script) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a loopback port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared { script, state: Mutex::default(), stopped: Condvar::new() });
        let acceptor = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Self { address, shared, acceptor: Some(acceptor) }
    }

    /// Returns the value of `ANTHROPIC_BASE_URL`; with `/v1` at its end it is the `base_url` of a
    /// Codex provider.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    /// Lets every held step answer, now and from now on.
    pub fn release(&self) {
        self.shared.lock().released = true;
        self.shared.stopped.notify_all();
    }

    /// Sets a mark, and wakes the steps that wait for it.
    pub fn tell(&self, mark: &str) {
        self.shared.lock().marks.insert(mark.into());
        self.shared.stopped.notify_all();
    }

    /// Returns whether a mark was set.
    pub fn was_told(&self, mark: &str) -> bool {
        self.shared.lock().marks.contains(mark)
    }

    /// Returns the requests that took a step of the script.
    pub fn main_requests(&self) -> Vec<Request> {
        self.shared.lock().requests.iter().filter(|request| request.main).cloned().collect()
    }
}

impl ModelServer {
    /// Prints all requests, for the reader of a failed test.
    fn tell_what_was_asked(&self) {
        const ENOUGH: usize = 300;
        eprintln!("--- what the model was asked");
        for request in self.requests() {
            let body = &request.body;
            let last = ["messages", "input", "contents"]
                .iter()
                .find_map(|name| body[name].as_array()?.last())
                .unwrap_or(body);
            let last: String = last.to_string().chars().take(ENOUGH).collect();
            let step = if request.main { "a step" } else { "no step" };
            eprintln!("{} {} ({step}): {last}", request.path, body["model"]);
        }
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell_what_was_asked();
        }
        let connections = {
            let mut state = self.shared.lock();
            state.stopping = true;
            std::mem::take(&mut state.connections)
        };
        self.shared.stopped.notify_all();
        for connection in connections {
            let _ = connection.shutdown(Shutdown::Both);
        }
        // The connection wakes the acceptor, which sees `stopping` and ends.
        let _ = TcpStream::connect(self.address);
        let workers = std::mem::take(&mut self.shared.lock().workers);
        for thread in workers.into_iter().chain(self.acceptor.take()) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, but no longer than the server lives. Returns false if the server ends.
    fn pause(&self, for_how_long: Duration) -> bool {
        let state = self.lock();
        let outcome = self.stopped.wait_timeout_while(state, for_how_long, |state| !state.stopping);
        !outcome.map_or(true, |(state, _)| state.stopping)
    }

    /// Waits until the held steps are released, or the server ends.
    fn wait_for_release(&self) {
        let state = self.lock();
        drop(self.stopped.wait_while(state, |state| !state.stopping && !state.released));
    }

    fn next_id(&self, prefix: &str) -> String {
        let mut state = self.lock();
        state.ids += 1;
        format!("{prefix}_{:08}", state.ids)
    }

    fn take_step(&self, request: &Request) -> Step {
        match &self.script {
            Script::Player(play) => play(request),
            Script::Steps(steps) => {
                let mut state = self.lock();
                let at = state.taken.min(steps.len() - 1);
                state.taken += 1;
                steps[at].clone()
            }
        }
    }

    /// Sets the marks of `step`, and waits for the marks that it awaits.
    fn meet(&self, step: &Step) {
        let mut state = self.lock();
        state.marks.extend(step.marks.iter().cloned());
        self.stopped.notify_all();
        let missing = |state: &State| step.awaits.iter().any(|mark| !state.marks.contains(mark));
        drop(self.stopped.wait_while(state, |state| !state.stopping && missing(state)));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        let mut state = shared.lock();
        if state.stopping {
            return;
        }
        let Ok(connection) = connection else { continue };
        if let Ok(copy) = connection.try_clone() {
            state.connections.push(copy);
        }
        let shared = Arc::clone(shared);
        state.workers.push(std::thread::spawn(move || {
            // An error is a client that went away, which clients under test do all the time.
            let _ = serve(&connection, &shared);
            let _ = connection.shutdown(Shutdown::Both);
        }));
    }
}

fn serve(connection: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = std::io::BufReader::new(connection);
    while let Some(request) = http::read(&mut reader)? {
        let path = request.path.split('?').next().unwrap_or_default();
        let is_post = request.method == "POST";
        let is_messages = is_post && path.ends_with("/messages");
        let is_responses = is_post && path.ends_with("/responses");
        let is_chat = is_post && path.ends_with("/chat/completions");
        let is_gemini = is_post && path.to_ascii_lowercase().ends_with("generatecontent");
        let has_tools = request.body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
        let main = (is_messages || is_responses || is_chat || is_gemini) && has_tools;
        let step = if main { shared.take_step(&request) } else { Step::text("ok") };
        shared.lock().requests.push(Request { main, ..request.clone() });
        shared.meet(&step);
        let error = if is_chat {
            chat::error
        } else if is_gemini {
            gemini::error
        } else {
            answer::error
        };
        let early = answer::early(connection, shared, &step, error)?;
        let go_on = if let Some(go_on) = early {
            go_on
        } else if is_messages {
            answer::messages(connection, shared, &request.body, &step)?
        } else if is_responses {
            responses::responses(connection, shared, &request.body, &step)?
        } else if is_chat {
            chat::completions(connection, shared, &request.body, &step)?
        } else if is_gemini {
            gemini::content(connection, shared, path, &request.body, &step)?
        } else {
            answer::other(connection, &request.method, path)?
        };
        if !go_on {
            return Ok(());
        }
    }
    Ok(())
}
