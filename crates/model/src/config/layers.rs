//! Merges the layers, and checks conditions that only the merged whole can violate.

use crate::config::decode::{Leaf, decode, dotted};
use crate::config::error::{ConfigError, NotFound, Place};
use crate::config::otlp_endpoint::Endpoint;
use crate::config::people;
use crate::config::ranges;
use crate::config::trust::{self, Ignored, Trust, Weaker};
use crate::config::types::notify::{Mail, is_address, is_mailbox, is_server};
use crate::config::{
    BackendChoice, Config, DEFAULT, ENV_PREFIX, Layer, Origin, Project, Retention, Run, Settings,
    Source, yaml,
};
use crate::conversation::schedule::settings as schedule;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Every effective leaf by its path, with its source.
type Leaves = BTreeMap<Vec<String>, Set>;

#[derive(Debug, Clone)]
struct Set {
    value: Value,
    place: Option<Place>,
    /// The index into the ordered sources.
    source: usize,
}

/// The embedded layer, parsed once, because every client request loads its project's configuration.
static DEFAULTS: LazyLock<Result<Vec<Leaf>, Vec<ConfigError>>> = LazyLock::new(|| read(&default()));

fn default() -> Source {
    Source { layer: Layer::Default, file: None, text: DEFAULT.into(), trust: Trust::Trusted }
}

pub(super) fn load(
    sources: &[Source],
    env: &[(String, String)],
) -> Result<Config, Vec<ConfigError>> {
    let mut sources: Vec<Source> = std::iter::once(default())
        .chain(sources.iter().cloned())
        .chain(env.iter().filter_map(|(name, value)| variable(name, value)))
        .collect();
    sources.sort_by_key(|source| source.layer);

    let mut errors = vec![];
    let mut ignored = vec![];
    let mut leaves = Leaves::new();
    for (index, source) in sources.iter().enumerate() {
        let read = if source.layer == Layer::Default { DEFAULTS.clone() } else { read(source) };
        let read = read.map(|read| counting(source, read, &leaves, &mut ignored));
        match read {
            Ok(read) => read.into_iter().for_each(|leaf| set(&mut leaves, leaf, index)),
            Err(faults) => errors.extend(faults),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    complete_categories(&mut leaves);
    let settings: Settings = serde_json::from_value(tree(&leaves)).map_err(|error| {
        vec![ConfigError::new(format!("the configuration files contradict each other: {error}"))]
    })?;
    let faults: Vec<_> =
        faults(&settings).into_iter().map(|fault| fault.locate(&leaves, &sources)).collect();
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(Config { origins: origins(&leaves, &sources), settings, ignored })
}

/// Returns the leaves of a source that take effect; the others are added to `ignored`.
fn counting(
    source: &Source,
    read: Vec<Leaf>,
    leaves: &Leaves,
    ignored: &mut Vec<Ignored>,
) -> Vec<Leaf> {
    if source.trust == Trust::Trusted {
        return read;
    }
    let weaker: Weaker =
        leaves.iter().map(|(path, set)| (path.clone(), set.value.clone())).collect();
    let (mut counting, others): (Vec<_>, Vec<_>) = read
        .into_iter()
        .partition(|leaf| trust::counts(source.trust, &leaf.path, &leaf.value, &weaker));
    // An additional deny rule takes effect. A list that drops weaker rules does not remove them.
    counting.extend(others.iter().filter_map(|leaf| {
        let value = trust::united(&leaf.path, &leaf.value, &weaker)?;
        Some(Leaf { value, ..leaf.clone() })
    }));
    ignored.extend(others.into_iter().map(|leaf| Ignored {
        key: dotted(&leaf.path),
        effect: trust::effect(&leaf.path).as_str(),
        value: leaf.value,
        file: source.file.clone(),
        line: leaf.place.map(|place| place.line),
    }));
    counting
}

fn read(source: &Source) -> Result<Vec<Leaf>, Vec<ConfigError>> {
    let file = source.file.as_deref();
    let generated = source.layer.is_generated();
    let result = yaml::parse(&source.text, file)
        .map_err(|error| vec![error])
        .and_then(|root| decode::<Settings>(root, file, &source.text).map(|(_, leaves)| leaves));
    result.map_err(|mut errors| {
        // The text of a variable or flag is generated, so only its name helps the user.
        for error in errors.iter_mut().filter(|_| generated) {
            (error.line, error.column, error.snippet) = (None, None, None);
        }
        errors
    })
}

/// Turns a variable such as `MULETEER_CONFIG__POOL__MAX_AGENTS` into a source.
fn variable(name: &str, value: &str) -> Option<Source> {
    let parts: Vec<&str> = name.strip_prefix(ENV_PREFIX)?.split("__").collect();
    // The names of environment variables keep their case: `BACKENDS__CODEX__ENV__NO_COLOR`.
    let lower = |at: usize| {
        !(at == 3
            && parts[0].eq_ignore_ascii_case("backends")
            && parts[2].eq_ignore_ascii_case("env"))
    };
    let parts: Vec<String> = parts
        .iter()
        .enumerate()
        .map(|(at, part)| if lower(at) { part.to_lowercase() } else { (*part).to_string() })
        .collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Some(Source::new(Layer::Env, name, nested(&parts, value)))
}

/// Returns the YAML text of one value below a path of keys.
pub(super) fn nested(parts: &[&str], value: &str) -> String {
    let mut text = String::new();
    for (depth, part) in parts.iter().enumerate() {
        // A JSON string is a valid YAML key with any characters.
        let key = Value::String((*part).to_string()).to_string();
        text.push_str(&format!("\n{}{key}:", "  ".repeat(depth)));
    }
    format!("{} {value}\n", text.trim_start_matches('\n'))
}

/// Sets a leaf over those of weaker layers. The leaf may replace a mapping, and a mapping may
/// replace a leaf. An empty mapping replaces nothing.
fn set(leaves: &mut Leaves, leaf: Leaf, source: usize) {
    let below: Vec<Vec<String>> = at_or_below(leaves, &leaf.path).cloned().collect();
    if leaf.value.as_object().is_some_and(Map::is_empty) && !below.is_empty() {
        return;
    }
    for path in &below {
        leaves.remove(path);
    }
    for shorter in 1..leaf.path.len() {
        leaves.remove(&leaf.path[..shorter]);
    }
    leaves.insert(leaf.path, Set { value: leaf.value, place: leaf.place, source });
}

fn at_or_below<'a>(
    leaves: &'a Leaves,
    path: &'a [String],
) -> impl Iterator<Item = &'a Vec<String>> {
    leaves
        .range(path.to_vec()..)
        .map(|(key, _)| key)
        .take_while(move |key| key.starts_with(path))
}

/// Completes the user's own categories with the limits of `coding`. A new category with one key
/// must not mean "no limits".
fn complete_categories(leaves: &mut Leaves) {
    let part = |text: &str| text.to_string();
    let names: std::collections::BTreeSet<String> = leaves
        .keys()
        .filter(|path| path[0] == "categories")
        .filter_map(|path| path.get(1).cloned())
        .collect();
    let coding: Vec<(Vec<String>, Set)> = leaves
        .iter()
        .filter(|(path, _)| path.len() >= 3 && path[0] == "categories" && path[1] == "coding")
        // Only the limits and monitors are inherited, not the permission rules.
        .filter(|(path, _)| path.len() == 3 || path[2] == "monitors")
        .map(|(path, set)| (path.clone(), set.clone()))
        .collect();
    for name in names.iter().filter(|name| *name != "coding") {
        leaves.remove(&[part("categories"), name.clone()][..]);
        let own = |path: &[String]| [&[part("categories"), name.clone()], path].concat();
        // An empty `monitors:` means that all of its keys are omitted.
        leaves.remove(&own(&[part("monitors")]));
        for (path, set) in &coding {
            leaves.entry(own(&path[2..])).or_insert_with(|| set.clone());
        }
    }
}

fn tree(leaves: &Leaves) -> Value {
    let mut root = Map::new();
    for (path, set) in leaves {
        let Some((last, above)) = path.split_last() else { continue };
        let mut at = &mut root;
        for part in above {
            let below = at.entry(part.clone()).or_insert_with(|| Value::Object(Map::new()));
            // `set` stores no leaf above another one.
            let Value::Object(below) = below else { return Value::Null };
            at = below;
        }
        at.insert(last.clone(), set.value.clone());
    }
    Value::Object(root)
}

fn origins(leaves: &Leaves, sources: &[Source]) -> Vec<Origin> {
    let origin = |(path, set): (&Vec<String>, &Set)| {
        let source = &sources[set.source];
        let generated = source.layer.is_generated();
        let place = set.place.filter(|_| !generated);
        Origin {
            key: dotted(path),
            value: set.value.clone(),
            layer: source.layer,
            file: source.file.clone(),
            line: place.map(|place| place.line),
            column: place.map(|place| place.column),
            trust: source.trust,
        }
    };
    leaves.iter().map(origin).collect()
}

/// An invalid value of the right type.
struct ValueFault {
    path: Vec<String>,
    message: String,
    hint: Option<String>,
}

impl ValueFault {
    fn locate(self, leaves: &Leaves, sources: &[Source]) -> ConfigError {
        let error = ConfigError::new(format!("`{}`: {}", dotted(&self.path), self.message))
            .with_hint(self.hint);
        let Some(set) = leaves.get(&self.path) else { return error };
        let source = &sources[set.source];
        let generated = source.layer.is_generated();
        error.at(source.file.as_deref(), &source.text, set.place.filter(|_| !generated))
    }
}

/// The message for a number out of its range, which [`ranges`] names.
const NUMBER: &str = "expected another number";

/// Collects the invalid values of the merged settings.
#[derive(Default)]
struct Faults(Vec<ValueFault>);

impl Faults {
    /// Adds a fault unless `ok`.
    fn wanted(&mut self, ok: bool, path: &[&str], message: &str) {
        if !ok {
            let path: Vec<String> = path.iter().map(|part| (*part).to_string()).collect();
            let message =
                ranges::of(&path).map_or(message.into(), |range| format!("expected {range}"));
            self.0.push(ValueFault { path, message, hint: None });
        }
    }

    fn mail(&mut self, mail: &Mail) {
        let message = "expected one address like me@example.org";
        self.wanted(is_mailbox(&mail.to), &["notify", "mail", "to"], message);
        self.wanted(is_mailbox(&mail.from), &["notify", "mail", "from"], message);
        let message = "expected the name of an SMTP server, like smtp.example.org";
        self.wanted(is_server(&mail.server), &["notify", "mail", "server"], message);
        self.wanted(mail.port != Some(0), &["notify", "mail", "port"], NUMBER);
        let message = "expected starttls or tls: a password would cross the network in plain text";
        self.wanted(!mail.exposes_password(), &["notify", "mail", "tls"], message);
    }

    fn categories(&mut self, settings: &Settings) {
        const SECOND: &str = "expected at least 1 second";
        for (name, category) in &settings.categories {
            let at = |key: &'static str| ["categories", name.as_str(), key];
            let silence = category.inactivity_timeout.as_secs() >= 1;
            self.wanted(silence, &at("inactivity_timeout"), SECOND);
            let timeout = category.timeout.is_none_or(|t| t.as_secs() >= 1);
            self.wanted(timeout, &at("timeout"), SECOND);
            self.wanted(category.max_turns != Some(0), &at("max_turns"), NUMBER);
            self.wanted(category.max_restarts <= 1000, &at("max_restarts"), NUMBER);
            let budget = category.budget_usd.is_none_or(|usd| usd.is_finite() && usd > 0.0);
            let message = "expected an amount above 0, or null for no limit";
            self.wanted(budget, &at("budget_usd"), message);
        }
    }

    fn run(&mut self, run: &Run) {
        let agent = &run.agent;
        self.wanted(agent.max_concurrency >= 1, &["run", "agent", "max_concurrency"], NUMBER);
        self.wanted(
            agent.timeout_per_bead.as_secs() >= 1,
            &["run", "agent", "timeout_per_bead"],
            "expected at least 1 second",
        );
        let (maintain, judge) = (&run.phases.maintain, &run.phases.judge);
        self.wanted(maintain.n >= 1, &["run", "phases", "maintain", "n"], NUMBER);
        self.wanted(
            maintain.max_concurrency >= 1,
            &["run", "phases", "maintain", "max_concurrency"],
            NUMBER,
        );
        let iterations = ["run", "phases", "judge", "max_iterations"];
        self.wanted(judge.max_iterations >= 1, &iterations, NUMBER);
        let named = !run.target_branch.is_empty();
        self.wanted(named, &["run", "target_branch"], "expected a branch, or `auto`");
    }

    fn prices(&mut self, settings: &Settings) {
        for (model, price) in &settings.models.prices {
            let prices = [
                ("input", Some(price.input)),
                ("output", Some(price.output)),
                ("cache_read", price.cache_read),
                ("cache_write", price.cache_write),
            ];
            for (key, price) in prices {
                let possible = price.is_none_or(|usd| usd >= 0.0);
                let path = ["models", "prices", model, key];
                self.wanted(possible, &path, "expected a number of at least 0");
            }
        }
    }

    /// Checks the names and values of environment variables.
    fn variables(&mut self, settings: &Settings) {
        let variable = |name: &str| !name.is_empty() && !name.contains(['=', '\0', ' ']);
        for backend in BackendChoice::ALL {
            let Some(set) = settings.backends.get(backend) else { continue };
            let key = crate::config::canonical(backend.as_str());
            for (name, value) in &set.env {
                let path = ["backends", key.as_str(), "env", name.as_str()];
                self.wanted(variable(name), &path, "this cannot be the name of a variable");
                let message = "the value of a variable cannot contain a NUL";
                self.wanted(!value.contains('\0'), &path, message);
            }
        }
        let pass = &settings.env.pass;
        self.wanted(
            pass.iter().all(|name| variable(name)),
            &["env", "pass"],
            "expected names of variables, without values",
        );
        let stars = |name: &&String| name.strip_suffix('*').unwrap_or(name).contains('*');
        if let Some(name) = pass.iter().find(stars) {
            let message = format!("`{name}`: `*` may only be the last character");
            self.wanted(false, &["env", "pass"], &message);
        }
    }

    fn people(&mut self, settings: &Settings) {
        let projects = settings.projects.keys().map(String::as_str);
        for fault in people::faults(&settings.people, projects) {
            let path = std::iter::once("people".to_string()).chain(fault.path).collect();
            self.0.push(ValueFault { path, message: fault.message, hint: Some(fault.hint) });
        }
    }

    fn schedules(&mut self, settings: &Settings) {
        for fault in schedule::faults(&settings.schedules) {
            let path = ["schedules", &fault.schedule, fault.key].into_iter();
            let path = path.filter(|part| !part.is_empty()).map(String::from).collect();
            self.0.push(ValueFault { path, message: fault.message, hint: fault.hint });
        }
    }

    fn healing(&mut self, settings: &Settings) {
        for (key, message) in settings.healing.faults() {
            self.wanted(false, &["healing", key], message);
        }
    }

    fn overrides(&mut self, settings: &Settings) {
        let known = &settings.categories;
        for name in settings.models.overrides.keys().filter(|name| !known.contains_key(*name)) {
            let unknown = NotFound::new("category", name, known.keys().map(String::as_str));
            self.0.push(ValueFault {
                path: vec!["models".into(), "overrides".into(), name.clone()],
                message: unknown.to_string(),
                hint: Some(unknown.hint),
            });
        }
    }
}

fn faults(settings: &Settings) -> Vec<ValueFault> {
    let mut faults = Faults::default();
    faults.categories(settings);
    let pool = &settings.pool;
    faults.wanted((1..=1000).contains(&pool.max_agents), &["pool", "max_agents"], NUMBER);
    faults.wanted(pool.max_depth <= 100, &["pool", "max_depth"], NUMBER);
    faults.run(&settings.run);
    let endpoint = settings.telemetry.endpoint.as_deref().map(Endpoint::parse);
    faults.wanted(
        endpoint.is_none_or(|parsed| parsed.is_ok()),
        &["telemetry", "endpoint"],
        "expected an address like http://HOST:4318, or null",
    );
    let output = settings.retention.output_mib <= Retention::MOST_MIB;
    faults.wanted(output, &["retention", "output_mib"], NUMBER);
    let notify = &settings.notify;
    let message = "expected hours like 22:00-07:00, or null";
    faults.wanted(notify.quiet_hours().is_ok(), &["notify", "quiet"], message);
    let message = "expected a time zone like Europe/Berlin, or null";
    faults.wanted(notify.zone().is_ok(), &["notify", "time_zone"], message);
    for (key, address) in [("ntfy", &notify.ntfy), ("webhook", &notify.webhook)] {
        let message = "expected an address that begins with https:// or http://, or null";
        faults.wanted(is_address(address.as_deref()), &["notify", key], message);
    }
    if let Some(mail) = &notify.mail {
        faults.mail(mail);
    }
    faults.prices(settings);
    for (name, project) in &settings.projects {
        let path: &[&str] = match project {
            Project::Path(_) => &["projects", name],
            Project::Full(_) => &["projects", name, "path"],
        };
        faults.wanted(!project.path().trim().is_empty(), path, "expected a directory");
    }
    faults.variables(settings);
    faults.overrides(settings);
    faults.people(settings);
    faults.schedules(settings);
    faults.healing(settings);
    faults.0
}
