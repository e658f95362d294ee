//! Muleteer as a service of the system's own manager: systemd on Linux, launchd on macOS.
//!
//! - `unit`: the unit or plist with the right paths in it, pure;
//! - [`plan`]: what installing and removing take, pure;
//! - [`apply`]: carrying a plan out; [`state`]: what the manager says.

pub mod apply;
pub mod plan;
#[cfg(test)]
mod plist_schema;
pub mod state;
pub mod unit;

use std::path::{Path, PathBuf};

/// The unit's and the plist's name.
pub const UNIT: &str = "muleteer.service";
pub const LABEL: &str = "dev.muleteer.daemon";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manager {
    Systemd,
    Launchd,
}

impl Manager {
    /// The one of this operating system, whether it runs or not.
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

/// A user's own service, which runs while they are logged in (or linger), or the machine's.
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

/// What is to be installed, for whom and where.
#[derive(Debug, Clone)]
pub struct Service {
    pub manager: Manager,
    pub scope: Scope,
    /// The absolute path of `muleteer`.
    pub program: PathBuf,
    /// `--config`, absolute.
    pub config: Option<PathBuf>,
    /// Directories that are not where they usually are, as variables: the daemon must mean the same
    /// ones.
    pub places: Vec<(String, String)>,
    /// Whose agents it runs.
    pub user: String,
    pub uid: u32,
    pub home: PathBuf,
    /// Of the user's configuration, where systemd looks for units.
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
