//! `muleteer run` on a terminal: it redraws in place, and leaves nothing of the picture afterwards.

// The test starts `script`, which provides a terminal.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::spec_stage::{AGENT, PATIENCE, SpecStage as Stage};
use muleteer_tests::{skip, wait_until};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A `muleteer` on a terminal of its own.
struct OnTerminal {
    child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl OnTerminal {
    /// Starts it. Returns `None` if there is no `script`.
    fn start(stage: &Stage, columns: u16, args: &str) -> Option<Self> {
        let program = stage.world.program();
        let line = format!("stty rows 40 cols {columns}; exec '{}' {args}", program.display());
        let mut command = Command::new("script");
        command
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .current_dir(&stage.repo.path);
        stage.world.environment(&mut command);
        command.env("TERM", "xterm-256color").env("SHELL", "/bin/sh");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut stdout = child.stdout.take()?;
        let shown = Arc::new(Mutex::new(vec![]));
        let into = Arc::clone(&shown);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut buffer) {
                into.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Some(Self { child, shown, reader: Some(reader) })
    }

    /// Returns the text on the screen, and the lines that scrolled off it.
    fn screen(&self) -> String {
        let mut terminal = vt100::Parser::new(400, 200, 0);
        terminal.process(&self.shown.lock().unwrap());
        terminal.screen().contents()
    }

    fn press_ctrl_c(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    }

    /// Waits for its end. Returns its exit code and the last screen.
    fn finish(mut self) -> (Option<i32>, String) {
        let status = wait_until("the command to end", PATIENCE, || self.child.try_wait().unwrap());
        drop(self.child.stdin.take());
        self.reader.take().unwrap().join().unwrap();
        (status.code(), self.screen())
    }
}

const PICTURE: [char; 2] = ['▒', '░'];

#[test]
fn it_is_drawn_in_place_and_ctrl_c_stops_the_run_and_leaves_the_screen_clean() {
    let stage = Stage::new(
        &AGENT.replace("implement)\n", "implement)\n  test -e \"$HOME/out/go\" || sleep 600\n"),
    );
    let daemon = stage.world.daemon();
    let agent = stage.agent.display().to_string();
    let begin = format!("run --spec plan.md --backend subprocess --command '{agent}'");
    let Some(mut terminal) = OnTerminal::start(&stage, 100, &begin) else {
        return skip::skip("run_screen", "there is no `script` here");
    };
    let screen = wait_until("a bead to be worked on", PATIENCE, || {
        let screen = terminal.screen();
        (screen.contains("0 of 3 beads done, 1 in progress, 2 open")
            && screen.contains("implement"))
        .then_some(screen)
    });
    assert_eq!(
        screen.matches("beads done").count(),
        1,
        "in place, not one below the other:\n{screen}"
    );
    assert!(screen.contains("unknown until a bead is done"), "{screen}");
    terminal.press_ctrl_c();
    let (code, screen) = terminal.finish();
    assert_eq!(code, Some(4), "{screen}");
    assert!(!screen.contains(PICTURE), "the picture is gone:\n{screen}");
    for told in [
        "phase implement",
        "stopping the run and its agents",
        "resume with `muleteer run --resume run-",
        "muleteer run --resume run-",
    ] {
        assert!(screen.contains(told), "{told}:\n{screen}");
    }
    assert_eq!(stage.status()["agents"], 0, "its agents are ended");

    // Another client watches the run on a narrow terminal until its end.
    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    let run = stage.status()["run_id"].as_str().unwrap().to_string();
    stage.muleteer(&["run", "--resume", &run, "--detach"]).run().expect_code(0);
    let onlooker = OnTerminal::start(&stage, 50, "run --status --follow").unwrap();
    let (code, screen) = onlooker.finish();
    assert_eq!(code, Some(0), "{screen}");
    assert!(!screen.contains(PICTURE), "{screen}");
    assert!(screen.contains("completed") && screen.contains("judge: pass"), "{screen}");
    stage.world.finish(Some(daemon));
}

/// A watching client neither starts nor needs a daemon, and draws nothing without a terminal.
#[test]
fn finished_run_is_shown_in_plain_lines() {
    let stage = Stage::new(AGENT);
    let daemon = stage.world.daemon();
    let output = stage.begin(&[]).run().expect_code(0);
    assert!(
        !output.stderr.contains('\u{1b}') && !output.stderr.contains(PICTURE),
        "{}",
        output.stderr
    );
    assert!(output.stderr.contains("phase judge"), "{}", output.stderr);
    stage.world.expect_clean_end(Some(daemon));
    let again = stage.muleteer(&["run", "--status", "--follow"]).run().expect_code(0);
    assert!(again.stdout.contains("completed"), "{}", again.stdout);
    assert_eq!(stage.world.status()["daemon"]["running"], false, "nobody was started for it");
    let page = stage.world.path().join("run.html");
    let path = page.to_str().unwrap();
    let told = stage.muleteer(&["run", "report", "--html", path, "--json"]).json();
    assert_eq!(told["html"], path);
    let text = std::fs::read_to_string(&page).unwrap();
    for word in ["<!DOCTYPE html>", "Base", "Left", "Right", "Mended", "completed", "judge-results"]
    {
        assert!(text.contains(word), "{word}");
    }
    assert_eq!(stage.muleteer(&["run", "report", "--html", "-"]).ok(), text);
    let refused = stage
        .muleteer(&["run", "report", "--html", "/nowhere/run.html", "--json"])
        .run()
        .expect_code(4);
    assert_eq!(refused.error_code(), "E_IO");
}
