//! The files in HOME that programs outside of the sandbox run or obey.

use std::path::{Path, PathBuf};

/// Files that shells, desktops, services, git and ssh read. An agent that wrote one of them would
/// run code with the person's rights.
const OBEYED: [&str; 34] = [
    ".bash_aliases",
    ".bash_login",
    ".bash_logout",
    ".bash_profile",
    ".bashrc",
    ".config/autostart",
    ".config/environment.d",
    ".config/fish",
    ".config/gh",
    ".config/git/",
    ".config/nvim",
    ".config/plasma-workspace",
    ".config/systemd",
    ".git-credentials",
    ".gitconfig",
    ".inputrc",
    ".local/bin",
    ".local/share/applications",
    ".local/share/systemd",
    ".login",
    ".pam_environment",
    ".profile",
    ".ssh",
    ".tmux.conf",
    ".vimrc",
    ".xinitrc",
    ".xprofile",
    ".xsession",
    ".xsessionrc",
    ".zlogin",
    ".zlogout",
    ".zprofile",
    ".zshenv",
    ".zshrc",
];

/// Finds a variable of the agent's environment that is an absolute path.
pub(super) type Absolute<'a> = &'a dyn Fn(&str) -> Option<PathBuf>;

/// Returns a path in HOME, or in the folder to which a variable moves that part of HOME.
pub(super) fn at_home(home: &Path, name: &str, absolute: Absolute<'_>) -> PathBuf {
    const MOVED: [(&str, &str); 4] = [
        (".cache/", "XDG_CACHE_HOME"),
        (".config/", "XDG_CONFIG_HOME"),
        (".local/share/", "XDG_DATA_HOME"),
        (".local/state/", "XDG_STATE_HOME"),
    ];
    let moved = MOVED
        .iter()
        .find_map(|(before, variable)| Some(absolute(variable)?.join(name.strip_prefix(before)?)));
    moved.unwrap_or_else(|| home.join(name))
}

/// Returns those of them that exist.
pub(super) fn obeyed(home: &Path) -> Vec<PathBuf> {
    let all = OBEYED.iter().map(|name| home.join(name));
    all.filter(|path| path.symlink_metadata().is_ok()).collect()
}
