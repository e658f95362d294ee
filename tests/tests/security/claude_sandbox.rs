//! Claude Code's own sandbox inside ours, with the real CLI: a row of the table in
//! docs/guides/sandbox.md.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use crate::attack::Attack;
use muleteer_tests::claude;
use muleteer_tests::model_server::{ModelServer, Step};
use muleteer_tests::skip::skip;
use std::os::unix::fs::PermissionsExt;

/// It ends instead of running a command without its sandbox.
const SETTINGS: &str = r#"{"sandbox":{"enabled":true,"failIfUnavailable":true,
"autoAllowBashIfSandboxed":true,"allowUnsandboxedCommands":false}}"#;
/// Its sandbox lets a command write its directory and not HOME.
const COMMAND: &str = "echo in > inside.txt; echo out > \"$HOME/outside.txt\"; true";

#[test]
fn sandbox_of_claude_code_confines_commands_within_ours() {
    let test = "sandbox_of_claude_code_confines_commands_within_ours";
    let Some(mut attack) = Attack::of_nobody(test) else { return };
    let on_path = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
    };
    let (Some(bwrap), Some(socat)) = (on_path("bwrap"), on_path("socat")) else {
        return skip(test, "no bubblewrap or no socat here");
    };
    let Some(binary) = claude::binary(test) else { return };
    // Another user may not reach the folders of these programs.
    let bin = attack.world.path().join("programs");
    std::fs::create_dir(&bin).unwrap();
    for (name, program) in [("claude", binary), ("bwrap", bwrap), ("socat", socat)] {
        std::fs::copy(program, bin.join(name)).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bin.join(name), mode).unwrap();
    }
    attack.path = Some(format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()));
    attack.world.configure("sandbox: {nested: true}\n");
    let server = ModelServer::start([Step::bash(COMMAND), Step::success("done")]);
    let variables =
        claude::variables(&server).into_iter().filter(|(name, _)| *name != "IS_SANDBOX");
    let exports: String =
        variables.map(|(name, value)| format!("export {name}='{value}'\n")).collect();
    let script = format!(
        "{exports}mkdir -p \"$HOME/.claude\"\ncat > \"$HOME/.claude/settings.json\" <<'EOF'\n\
         {SETTINGS}\nEOF\nclaude -p 'Write a file' --output-format stream-json --verbose \
         < /dev/null || through 'it failed'\ntest -e inside.txt || through 'no command ran'\n\
         test -e \"$HOME/outside.txt\" && through 'the command wrote HOME'\ntrue"
    );
    let daemon = attack.daemon();
    assert_eq!(attack.run(&script), "");
    attack.end(daemon);
}
