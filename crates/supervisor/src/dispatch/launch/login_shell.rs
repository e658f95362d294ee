//! Keeps `muleteer` on the PATH in login shells. Codex runs each command with `bash -lc`, and
//! `/etc/profile` resets PATH. bash reads the file of `BASH_ENV` after it.

use crate::dispatch::saved::prompt_dir;
use muleteer_store::StoreError;
use std::path::{Path, PathBuf};

pub(super) const VARIABLE: &str = "BASH_ENV";

/// Writes the file that bash reads, and returns its path. `own` is the agent's own value of the
/// variable.
pub(super) fn write(
    agent_dir: &Path,
    bin: &Path,
    own: Option<&str>,
) -> Result<PathBuf, StoreError> {
    let folder = prompt_dir(agent_dir);
    muleteer_store::atomic::create_dir_durable(&folder, 0o700)?;
    let file = folder.join("bash_env.sh");
    let own = own.filter(|own| !own.is_empty() && Path::new(own) != file);
    // Each start writes it again, so it need not survive a power failure.
    muleteer_store::atomic::write_if_new(&file, script(bin, own).as_bytes(), 0o600)?;
    Ok(file)
}

fn script(bin: &Path, own: Option<&str>) -> String {
    let bin = quoted(&bin.display().to_string());
    let own = own.map_or_else(String::new, |own| format!(". {}\n", quoted(own)));
    format!("{own}case \"$PATH:\" in\n{bin}:*) ;;\n*) export PATH={bin}\":$PATH\" ;;\nesac\n")
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use muleteer_process::command::helper;

    #[test]
    fn login_shell_finds_a_program_in_the_folder_and_keeps_the_agents_own_file() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("b'i n");
        std::fs::create_dir(&bin).unwrap();
        let own = dir.path().join("own.sh");
        std::fs::write(&own, "OWN=1\n").unwrap();
        let file = write(dir.path(), &bin, own.to_str()).unwrap();
        let again = write(dir.path(), &bin, file.to_str()).unwrap();
        assert_eq!(again, file);
        let file = write(dir.path(), &bin, own.to_str()).unwrap();
        let mut bash = helper("bash");
        bash.args(["-lc", "echo \"$OWN:$PATH\"; bash -c 'echo \"$PATH\"'"]).env(VARIABLE, &file);
        let Ok(said) = bash.output() else { return eprintln!("SKIPPED: no bash") };
        let said = String::from_utf8(said.stdout).unwrap();
        let expected = format!("1:{}:", bin.display());
        assert!(said.starts_with(&expected), "{said}");
        let (outer, inner) = said.trim_end().split_once('\n').unwrap();
        assert_eq!(Some(inner), outer.strip_prefix("1:"), "a shell within it adds nothing");
    }
}
