//! Ensures that the demo's agents run in `muleteer-shim`, as those of an installation do.
//!
//! `cargo run` builds only `muleteer`. If cargo started the demo, the demo builds the shim too,
//! with the same features, so that hardly more than linking is left to do. A shim that was built
//! from other sources, for example before a `git pull`, is rebuilt. If nobody can rebuild it, the
//! demo refuses to start: its agents would fail for reasons that nobody sees.

use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::client::on_demand::own_program;
use muleteer_process::command::helper;
use muleteer_protocol::ErrorCode;
use muleteer_shim::run::{BUILD_WORD, build as our_build};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const NAME: &str = "muleteer-shim";
/// A shim answers the question for its build immediately.
const ANSWER: Duration = Duration::from_secs(10);

/// The cargo command that builds the shim.
#[derive(Debug, PartialEq, Eq)]
struct Build {
    cargo: OsString,
    dir: PathBuf,
    args: Vec<OsString>,
}

/// The shim that was found beside `muleteer`.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Ours,
    /// The shim was built from other sources; the text is its answer, if any.
    Other(String),
}

/// Builds the shim if `cargo run` has not built it, or has left an old one. Reports what is missing
/// if nobody can build it.
///
/// # Errors
/// `E_DAEMON_START` if a shim exists that was not built with this `muleteer`, and nobody can
/// rebuild it.
pub async fn provide(out: Output) -> Result<(), Failure> {
    let own = own_program();
    let beside = own.with_file_name(NAME);
    let mut found = look(&beside).await;
    if found == Found::Ours {
        return Ok(());
    }
    let by_cargo = std::env::var_os("CARGO").zip(std::env::var_os("CARGO_MANIFEST_DIR"));
    if let Some(build) = build(&own, by_cargo) {
        out.note(format!("building {NAME}, which runs the agents; `cargo run` does not build it"));
        let mut command = helper(&build.cargo);
        command.args(&build.args).current_dir(&build.dir).stdout(Stdio::null());
        let _ = tokio::process::Command::from(command).kill_on_drop(true).status().await;
        found = look(&beside).await;
    }
    match found {
        Found::Ours => {}
        Found::Nothing => missing(out, &own),
        Found::Other(said) => return Err(stale(&beside, &said)),
    }
    Ok(())
}

/// Asks the shim for its build. A shim of an earlier version does not know the question and prints
/// nothing.
async fn look(beside: &Path) -> Found {
    if !beside.exists() {
        return Found::Nothing;
    }
    let mut command = helper(beside);
    command.arg(BUILD_WORD).stderr(Stdio::null());
    let asked = tokio::process::Command::from(command).kill_on_drop(true).output();
    let said = match tokio::time::timeout(ANSWER, asked).await {
        Ok(Ok(output)) => String::from_utf8_lossy(&output.stdout).trim().to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", ANSWER.as_secs()),
    };
    if said == our_build() { Found::Ours } else { Found::Other(said) }
}

fn stale(beside: &Path, said: &str) -> Failure {
    let said = if said.is_empty() { "nothing, like an earlier version" } else { said };
    let message = format!(
        "{} was not built with this muleteer: it reports the build `{}`, but this muleteer needs \
         `{}`",
        beside.display(),
        said.chars().take(200).collect::<String>(),
        our_build()
    );
    Failure::new(ErrorCode::DaemonStart, message).file(beside).hint(format!(
        "build both: run `cargo build --release -p muleteer -p {NAME}` in a checkout, or `cargo \
         xtask install`"
    ))
}

fn missing(out: Output, own: &Path) {
    out.note(format!(
        "warning: {NAME} is not beside {}: each agent uses about six times the memory; run `cargo \
         xtask install` to install both",
        own.display()
    ));
}

/// Returns the build command if `own` is in cargo's folder of a profile, and cargo started it
/// (`CARGO` and `CARGO_MANIFEST_DIR`).
fn build(own: &Path, by_cargo: Option<(OsString, OsString)>) -> Option<Build> {
    let (cargo, dir) = by_cargo?;
    let folder = own.parent()?;
    let profile: &[&str] = match folder.file_name()?.to_str()? {
        "release" => &["--release"],
        "debug" => &[],
        _ => return None,
    };
    let words = ["build", "--quiet", "-p", "muleteer", "-p", NAME, "--bin", NAME, "--target-dir"];
    let args = words.iter().chain(profile).map(OsString::from).collect::<Vec<_>>();
    let (words, profile) = args.split_at(words.len());
    let args = [words, &[folder.parent()?.into()], profile].concat();
    Some(Build { cargo, dir: dir.into(), args })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;
    use std::io::Write;

    #[tokio::test]
    async fn shim_of_another_build_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let beside = dir.path().join(NAME);
        assert_eq!(look(&beside).await, Found::Nothing);
        // A child process writes the script. If this process wrote it, a child that another test
        // forks would have it open for writing, and nobody could execute it (`ETXTBSY`).
        let write = |script: &str| {
            let mut writer = std::process::Command::new("sh");
            writer.args(["-c", "cat > \"$0.new\" && chmod 755 \"$0.new\" && mv \"$0.new\" \"$0\""]);
            let mut writer = writer.arg(&beside).stdin(Stdio::piped()).spawn().unwrap();
            let text = format!("#!/bin/sh\n{script}\n");
            writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            assert!(writer.wait().unwrap().success());
        };
        write(&format!("test \"$*\" = {BUILD_WORD} && echo '{}'", our_build()));
        assert_eq!(look(&beside).await, Found::Ours);
        write("echo is started by the daemon >&2; exit 64");
        assert_eq!(look(&beside).await, Found::Other(String::new()));
        write("echo muleteer-shim 0.0.9 protocol 1 sources 0");
        let other = look(&beside).await;
        assert_eq!(other, Found::Other("muleteer-shim 0.0.9 protocol 1 sources 0".into()));
        let told = stale(&beside, "").text();
        assert!(told.contains("cargo xtask install") && told.contains(&our_build()), "{told}");
    }

    #[test]
    fn demo_builds_the_shim_in_the_running_cargo_profile() {
        let by_cargo = || Some(("/bin/cargo".into(), "/src/crates/muleteer".into()));
        let made = build(Path::new("/src/target/release/muleteer"), by_cargo()).expect("a build");
        let args: Vec<_> = made.args.iter().map(|arg| arg.to_string_lossy()).collect();
        let wanted = "build --quiet -p muleteer -p muleteer-shim --bin muleteer-shim --target-dir \
            /src/target --release";
        assert_eq!((args.join(" ").as_str(), made.cargo), (wanted, "/bin/cargo".into()));
        let made = build(Path::new("/t/debug/muleteer"), by_cargo()).expect("a build");
        assert!(
            !made.args.contains(&"--release".into()) && made.args.contains(&"/t".into()),
            "{made:?}"
        );
        assert_eq!(build(Path::new("/src/target/system-test/muleteer"), by_cargo()), None);
        assert_eq!(build(Path::new("/src/target/release/muleteer"), None), None);
    }
}
