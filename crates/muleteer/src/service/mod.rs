//! Muleteer as a service of the system's service manager: systemd on Linux, launchd on macOS.
//!
//! - `unit`: renders the unit or plist with this installation's paths, pure;
//! - [`plan`]: the steps of installing and removing, pure;
//! - [`apply`]: executes a plan; [`state`]: queries the manager.

pub mod apply;
pub mod plan;
#[cfg(test)]
mod plist_schema;
pub mod state;
pub mod unit;

use std::path::{Path, PathBuf};

/// The names of the unit and of the plist.
pub const UNIT: &str = "muleteer.service";
pub const LABEL: &str = "dev.muleteer.daemon";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manager {
    Systemd,
    Launchd,
}

impl Manager {
    /// Returns the manager of this operating system, even if it does not run.
    pub fn of_host() -> Self {
        if cfg!(target_os = "macos") { Self::Launchd } else { Self::Systemd }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Systemd => "systemd",
            Self::Launchd => "launchd",
        }
    }
}

/// The scope of a service: one user's, which runs while they are logged in (or linger), or the
/// machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    User,
    System,
}

impl Scope {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::System => "system",
        }
    }
}

/// The service to install, with its user and its paths.
#[derive(Debug, Clone)]
pub struct Service {
    pub manager: Manager,
    pub scope: Scope,
    /// The absolute path of `muleteer`.
    pub program: PathBuf,
    /// `--config`, absolute.
    pub config: Option<PathBuf>,
    /// Directories at unusual places, as variables, so that the daemon uses the same ones.
    pub places: Vec<(String, String)>,
    /// The user whose agents the daemon runs.
    pub user: String,
    pub uid: u32,
    pub home: PathBuf,
    /// The directory of the user's configuration, in which systemd looks for units.
    pub config_home: PathBuf,
}

impl Service {
    pub fn path(&self) -> PathBuf {
        match (self.manager, self.scope) {
            (Manager::Systemd, Scope::User) => self.config_home.join("systemd/user").join(UNIT),
            (Manager::Systemd, Scope::System) => Path::new("/etc/systemd/system").join(UNIT),
            (Manager::Launchd, Scope::User) => {
                self.home.join("Library/LaunchAgents").join(format!("{LABEL}.plist"))
            }
            (Manager::Launchd, Scope::System) => {
                Path::new("/Library/LaunchDaemons").join(format!("{LABEL}.plist"))
            }
        }
    }
}
