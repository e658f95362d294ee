//! Settings that people change with `/set`.

use crate::conversation::rights::own_variables;
use crate::daemon::context::Daemon;
use crate::daemon::settings;
use crate::dispatch::error::{fault, located};
use muleteer_model::config::ThreadVerbosity;
use muleteer_model::conversation::event::VerbosityChanged;
use muleteer_model::conversation::thread::Thread;
use muleteer_model::event::Event;
use muleteer_model::setting::{SettingChanged, Unsettable};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;

/// The key of the setting of a thread that says what it is told of its agents' work.
pub(super) const VERBOSITY: &str = "verbosity";

/// Returns the event that changes what a thread is told, with the text that says so.
///
/// # Errors
/// `E_BAD_INPUT`: there is no such level.
pub(super) fn verbosity(
    thread: &Thread,
    value: Option<&str>,
    by: &str,
) -> Result<(String, Event), WireError> {
    let unknown = |name: &str| {
        let message = format!("`{name}` is no verbosity of a thread");
        fault(ErrorCode::BadInput, &message, "use quiet, normal or all")
    };
    let level = |name: &str| ThreadVerbosity::parse(name).ok_or_else(|| unknown(name));
    let verbosity = value.map(level).transpose()?;
    let text = match verbosity {
        Some(level) => format!("The verbosity of this thread is {}.", level.as_str()),
        None => "The verbosity of this thread is that of each agent's role.".into(),
    };
    let thread = thread.id().to_string();
    let changed = VerbosityChanged { thread, verbosity, by: by.into() };
    Ok((text, Event::ThreadVerbosity(Box::new(changed))))
}

/// Checks a change of a setting, and returns the text that says what it does.
///
/// # Errors
/// The configuration would be invalid, or the user may not change this key.
pub(crate) fn check_setting(
    daemon: &Daemon,
    changed: &SettingChanged,
) -> Result<String, WireError> {
    let given = daemon.settings.config_file.as_deref();
    let sources = settings::sources(&daemon.paths, None, given)
        .map_err(|error| fault(ErrorCode::ConfigInvalid, &error.to_string(), ""))?;
    let fleet = daemon.snapshot();
    let checked = fleet.runtime.check(changed, &sources, &own_variables());
    let config = checked.map_err(|error| match error {
        Unsettable::Invalid(error) => located(*error),
        Unsettable::Local(_) => fault(
            ErrorCode::Forbidden,
            &error.to_string(),
            "run `muleteer config set` in a terminal of the daemon's user",
        ),
        Unsettable::Value | Unsettable::NotSet(_) | Unsettable::TooMany => {
            fault(ErrorCode::BadInput, &error.to_string(), "")
        }
    })?;
    let key = &changed.key;
    let origin = config.as_ref().map(|config| config.origin(key));
    let text = match (&changed.value, origin) {
        (Some(value), _) => format!("`{key}` is {value}"),
        (None, Some(Some(origin))) => format!("`{key}` is {} again", origin.value),
        (None, None) => {
            format!("the change of `{key}` is withdrawn; the configuration has further faults")
        }
        (None, Some(None)) => format!("`{key}` is as the files have it"),
    };
    let since = match muleteer_model::config::is_read_at_start(key) {
        true => ", from the next start of the daemon on",
        false => "",
    };
    Ok(format!("{text}{since}."))
}
