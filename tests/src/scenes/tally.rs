//! A spec run on real agent CLIs. Their actions are real (tools, clones, rebases, pushes, the
//! program that they make and its tests); only the model's answers are scripted. Each part decides
//! by the answers of its tools, as a model would: it rebases again when its push is refused, and
//! judges by the behaviour of the program.

use crate::model_server::{Request, Step};
use crate::talk::Talk;
use serde_json::json;

/// The spec. `Right` and the judge know what it demands beyond the commands.
pub const SPEC: &str = "\
# Tally

A program for the command line: `node src/cli.js COMMAND < TEXT` says one thing about a text.

## Commands

`words` and `lines` count, `longest` says the longest word, `reverse` turns the text round, \
`unique` counts
different words, `shout` says it in capitals. Each is a module of its own with a test of its own; \
the table
`src/commands.js` names them all.

## Mistakes

An unknown command is told on stderr, and the program ends with exit code 2.

## Manual

`MANUAL.md` says what each command does.
";

/// A word of the criteria, which no agent but the judge may ever see.
pub const SECRET: &str = "criterion-7f3a";

/// A command of the program: its bead's title, its module's body, and its input and output.
struct Command {
    title: &'static str,
    name: &'static str,
    body: &'static str,
    input: &'static str,
    output: &'static str,
}

const COMMANDS: [Command; 6] = [
    command(
        "Words",
        "words",
        "String(text.split(/\\s+/).filter(Boolean).length)",
        "one two  three",
        "3",
    ),
    command("Lines", "lines", "String(text.split('\\n').length)", "a\\nb", "2"),
    command(
        "Longest",
        "longest",
        "text.split(/\\s+/).reduce((a, b) => (b.length > a.length ? b : a))",
        "a bcd ef",
        "bcd",
    ),
    command("Reverse", "reverse", "text.split('').reverse().join('')", "abc", "cba"),
    command(
        "Unique",
        "unique",
        "String(new Set(text.split(/\\s+/).filter(Boolean)).size)",
        "a b a",
        "2",
    ),
    command("Shout", "shout", "text.toUpperCase()", "hey", "HEY"),
];

const fn command(
    title: &'static str,
    name: &'static str,
    body: &'static str,
    input: &'static str,
    output: &'static str,
) -> Command {
    Command { title, name, body, input, output }
}

/// The scope of a spec's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Eight beads, with everything that may go wrong between them.
    Whole,
    /// Three beads, two of which wait for the first.
    Short,
    /// The same without anything going wrong; one agent and the judge wait at a point where they
    /// may be killed.
    Killed,
}

/// Returns the answer to one request of one of the agents.
pub fn play(length: Length, request: &Request) -> Step {
    let talk = Talk::of(request);
    let says = |words: &str| talk.prompt.contains(words);
    if says("<evaluation>") {
        structure(&talk)
    } else if says("You write the acceptance criteria") {
        acceptance(&talk)
    } else if says("You plan the work") {
        decompose(length, &talk)
    } else if says("Several agents have merged their work") {
        maintain(&talk)
    } else if says("You judge whether a repository") {
        judge(length, &talk)
    } else {
        let title = talk.told("**Title**: ", "\n").unwrap_or_default().to_string();
        implement(length, &title, &talk)
    }
}

/// Makes a step that runs a script and prints the stage and its exit code, by which the next answer
/// knows the state.
fn told(stage: &str, script: &str) -> Step {
    Step::bash(&format!("(set -e\n{script}\n) 2>&1\necho \"== {stage} $?\""))
}

/// Returns the last stage that a tool printed, and whether it succeeded.
fn stage(talk: &Talk) -> (&str, bool) {
    let line = talk.last().lines().rev().find_map(|line| line.trim().strip_prefix("== "));
    let (stage, code) = line.unwrap_or_default().rsplit_once(' ').unwrap_or_default();
    (stage, code == "0")
}

/// Returns the `muleteer` command from the prompt: if PATH is reset there is no other way to call
/// it.
fn muleteer(talk: &Talk) -> &str {
    let at = [" bead create", " bead close"].iter().filter_map(|verb| talk.prompt.find(verb)).min();
    let before = &talk.prompt[..at.unwrap_or(0)];
    before.rsplit(['`', '\n', ' ']).next().unwrap_or_default()
}

fn acceptance(talk: &Talk) -> Step {
    match stage(talk).0 {
        "" => told(
            "criteria",
            &format!(
                "cd \"$MULETEER_ACCEPTANCE_DIR\" && for name in user-stories edge-cases \
                 negative-tests; do \
                 echo \"{SECRET} of $name: an unknown command ends with exit code 2\" > $name.md; \
                 done; ls"
            ),
        ),
        _ => Step::text("The criteria are written."),
    }
}

fn decompose(length: Length, talk: &Talk) -> Step {
    let muleteer = muleteer(talk);
    let create = |id: &str, title: &str, priority: u8| {
        format!(
            "{id}=$({muleteer} bead create --title '{title}' --description 'See {title} in the \
             spec, with a test' \
             --priority {priority}) || exit 1\n"
        )
    };
    let after = |id: &str, others: &[&str]| {
        let line =
            |other: &&str| format!("{muleteer} bead dep add \"${id}\" \"${other}\" || exit 1\n");
        others.iter().map(line).collect::<String>()
    };
    let script = match (stage(talk).0, length) {
        ("", _) => return told("looked", "git log --oneline; ls"),
        ("looked", Length::Whole) => [
            create("base", "The command line", 0),
            create("words", "Words", 1),
            create("lines", "Lines", 1),
            create("longest", "Longest", 2),
            create("reverse", "Reverse", 2),
            create("unique", "Unique", 3),
            create("shout", "Shout", 3),
            create("manual", "The manual", 4),
            after("words", &["base"]),
            after("lines", &["base"]),
            after("longest", &["base"]),
            after("reverse", &["base"]),
            after("unique", &["longest", "reverse"]),
            after("shout", &["longest", "reverse"]),
            after("manual", &["words", "lines", "unique", "shout"]),
        ]
        .concat(),
        ("looked", Length::Short | Length::Killed) => [
            create("base", "The command line", 0),
            create("words", "Words", 1),
            create("lines", "Lines", 1),
            after("words", &["base"]),
            after("lines", &["base"]),
        ]
        .concat(),
        ("made", _) => return told("shown", &format!("{muleteer} bead graph")),
        _ => return Step::text("The graph is whole."),
    };
    told("made", &script)
}

/// Plays a coding agent: work, tests, rebase and push, repeated as necessary, then the bead.
fn implement(length: Length, title: &str, talk: &Talk) -> Step {
    let again = talk.prompt.contains("## The attempt before yours");
    let whole = length == Length::Whole;
    let (at, well) = stage(talk);
    let close = talk.told("The bead is closed: `", "`").unwrap_or_default();
    let step = match (at, well) {
        ("", _) if whole && title == "Unique" && !again => told("half", &files(length, title)),
        // The agent ends without a word about its bead, and without a commit.
        ("half", _) => Step::text("I have written unique.js, and have no time left for the rest."),
        ("", _) if whole && title == "Unique" => told(
            "work",
            "test -e src/unique.js && git status --short && git add --all && git commit --quiet -m \
             Unique",
        ),
        ("", _) if whole && title == "Shout" && !again => told("lost", &files(length, title)),
        // The model's API refuses the request; Claude Code gives up with an error.
        ("lost", _) => Step::status(400),
        ("", _) => told(
            "work",
            &format!("{}\ngit add --all && git commit --quiet -m '{title}'", files(length, title)),
        ),
        ("work" | "resolved", true) => told("tested", tests_of(title)),
        // Failures of other agents' tests are left to maintenance.
        ("tested", true) | ("push", false) => rebase(talk),
        ("rebase", false) => told(
            "resolved",
            "git status --short | grep '^\\(AA\\|UU\\)' && sed -i -e '/^<<<<<<< /d' -e \
             '/^=======$/d' -e '/^>>>>>>> /d' \
             src/commands.js && git add src/commands.js && GIT_EDITOR=true git rebase --continue",
        ),
        ("rebase", true) => push(talk),
        ("push", true) => told("noted", &observation(title, muleteer(talk))),
        ("noted", true) => told("closed", &close.replace("what you did", title)),
        ("closed", true) => Step::text(format!("{title} is done.")),
        _ => Step::text(format!("I do not know how to go on: {}", talk.last())),
    };
    match (length, title) {
        (Length::Whole, _) => meet(title, at, well, talk, step),
        (Length::Killed, "Words") if at == "rebase" => {
            step.tells("pushing").awaits(&["daemon killed"])
        }
        _ => step,
    }
}

/// Makes agents wait for each other, so that the scripted conflicts happen however fast each agent
/// is.
fn meet(title: &str, at: &str, well: bool, talk: &Talk, step: Step) -> Step {
    let first = !talk.results.iter().any(|result| result.contains("== push"));
    match (title, at, well) {
        // Both have added the same line, on the same commit: the second one has a conflict.
        ("Words", "rebase", true) => step.tells("words ready").awaits(&["lines ready"]),
        ("Lines", "rebase", true) if first => step.tells("lines ready").awaits(&["words pushed"]),
        ("Words", "push", true) => step.tells("words pushed"),
        ("Lines", "push", true) => step.tells("lines pushed"),
        // Both push at once, from the same commit: one push is refused.
        ("Longest" | "Reverse", "tested", true) if first => step.awaits(&["lines pushed"]),
        ("Longest", "rebase", true) => step.tells("longest ready").awaits(&["reverse ready"]),
        ("Reverse", "rebase", true) => step.tells("reverse ready").awaits(&["longest ready"]),
        ("Longest", "push", true) => step.tells("longest pushed"),
        ("Reverse", "push", true) => step.tells("reverse pushed"),
        _ => step,
    }
}

// The agent uses exactly the command from its prompt.
fn rebase(talk: &Talk) -> Step {
    told("rebase", &format!("git fetch{}", talk.told("git fetch", "\n").unwrap_or_default()))
}

fn push(talk: &Talk) -> Step {
    told("push", &format!("git push{}", talk.told("git push", "\n").unwrap_or_default()))
}

fn observation(title: &str, muleteer: &str) -> String {
    match title {
        "Reverse" => format!(
            "{muleteer} bead create --title 'Observation: reverse takes letters of two units \
             apart' --type task \
             --label observation"
        ),
        "Words" => format!(
            "{muleteer} bead create --title 'Observation: no colours' --type task --label \
             observation"
        ),
        _ => "true".into(),
    }
}

fn tests_of(title: &str) -> &'static str {
    match title {
        // These agents run all tests; the others ignore failures that they did not cause.
        "The command line" | "Words" | "Unknown commands end with 2" => "node --test",
        _ => "node --test || echo 'not mine'",
    }
}

/// Returns the commands that write a bead's files.
fn files(length: Length, title: &str) -> String {
    if let Some(command) = COMMANDS.iter().find(|command| command.title == title) {
        return module(length, command);
    }
    match title {
        "The command line" if length == Length::Killed => {
            files(Length::Short, title).replace("process.exit(1)", "process.exit(2)")
        }
        "The command line" => "mkdir -p src test
cat > package.json <<'END'
{\"name\": \"tally\", \"type\": \"module\", \"scripts\": {\"test\": \"node --test\"}}
END
cat > src/commands.js <<'END'
export const commands = {
};
END
cat > src/cli.js <<'END'
import { readFileSync } from 'node:fs';
import { commands } from './commands.js';

const load = commands[process.argv[2]];
if (!load) {
  console.error(`tally: no command ${process.argv[2]}`);
  process.exit(1);
}
const { run } = await load();
console.log(run(readFileSync(0, 'utf8').trimEnd()));
END
cat > test/table.test.js <<'END'
import test from 'node:test';
import assert from 'node:assert';
import { commands } from '../src/commands.js';

test('every command has a module', async () => {
  for (const load of Object.values(commands)) assert.equal(typeof (await load()).run, 'function');
});
END"
        .into(),
        "The manual" => "{ echo '# Tally'; echo; sed -n 's/^  \\([a-z]*\\):.*/- `\\1`/p' \
         src/commands.js; } > MANUAL.md
test \"$(grep -c '^- ' MANUAL.md)\" = 6"
            .into(),
        // No file outside the criteria may have their secret word. The script joins the word from
        // two parts, so that the search does not find the script itself. Without a sandbox `/tmp`
        // is the machine's, and a search of it can outlast Codex's wait for a command, so the
        // script ends the search after 20 s. It then prints the word that fails the test of a
        // confined agent, because a search that was cut proves nothing.
        "Unknown commands end with 2" => format!(
            "sed -i 's/process.exit(1)/process.exit(2)/' src/cli.js
word={}; word=${{word}}{}
found=$(timeout 20 grep -rls \"$word\" \"$HOME\" \"${{CODEX_HOME:-$HOME}}\" /tmp .) ||
  [ $? -ne 124 ] || echo 'LEAKED perhaps: the search took too long'
for file in $found; do echo \"LEAKED to $file\"; done",
            &SECRET[..5],
            &SECRET[5..]
        ),
        "Observation: reverse takes letters of two units apart" => {
            "sed -i \"s/text.split('')/[...text]/\" src/reverse.js && grep -q '\\[...text\\]' \
             src/reverse.js"
                .into()
        }
        _ => format!("echo 'there is no such bead: {title}'; false"),
    }
}

/// Returns a module, its test, and its line in the table: at the top, except for one module at the
/// end.
fn module(length: Length, command: &Command) -> String {
    let Command { title, name, body, input, output } = command;
    let place = if *title == "Reverse" { "/^};/i" } else { "/commands = {/a" };
    let only = match (length, *title) {
        // The test is right when it is written, and broken by the next agent that adds a command.
        (Length::Whole, "Words") => {
            "
cat >> test/words.test.js <<'END'

test('words is the only command', async () => {
  const { commands } = await import('../src/commands.js');
  assert.deepEqual(Object.keys(commands), ['words']);
});
END"
        }
        _ => "",
    };
    format!(
        "cat > src/{name}.js <<'END'
export const run = (text) => {body};
END
cat > test/{name}.test.js <<'END'
import test from 'node:test';
import assert from 'node:assert';
import {{ run }} from '../src/{name}.js';

test('{name}', () => assert.equal(run('{input}'), '{output}'));
END
sed -i \"{place}\\\\  {name}: () => import('./{name}.js'),\" src/commands.js{only}"
    )
}

/// Plays maintenance: it looks for broken tests, repairs that one test, and closes its bead in any
/// case.
fn maintain(talk: &Talk) -> Step {
    let bead = talk.told(" bead close ", " ").unwrap_or_default();
    let muleteer = muleteer(talk);
    match stage(talk) {
        ("", _) => told("tested", "node --test"),
        ("tested", true) => told(
            "closed",
            &format!("{muleteer} bead close {bead} --reason 'nothing is broken' --no-change"),
        ),
        ("tested", false) => told(
            "mended",
            "sed -i -e 's/the only command/a command/' \
             -e \"s/assert.deepEqual(Object.keys(commands), \
             \\['words'\\])/assert.ok(commands.words)/\" \
             test/words.test.js && node --test && git commit --quiet --all -m 'chore: fix \
             test/build breakage'",
        ),
        ("mended", true) | ("push", false) => {
            rebase(talk).awaits(&["longest pushed", "reverse pushed"])
        }
        ("rebase", true) => push(talk),
        ("push", true) => {
            told("closed", &format!("{muleteer} bead close {bead} --reason 'mended a test'"))
        }
        ("closed", true) => Step::text("Maintenance is done."),
        _ => Step::text(format!("I do not know how to go on: {}", talk.last())),
    }
}

/// Plays the judge, which tries everything that the spec and the criteria demand. It cannot write,
/// so it does not try to.
fn judge(length: Length, talk: &Talk) -> Step {
    match stage(talk).0 {
        "" => told(
            "read",
            "cat \"$MULETEER_ACCEPTANCE_DIR\"/*.md; ls; cat src/commands.js; echo \
             \"$MULETEER_OBSERVATIONS\"",
        ),
        "read" if length == Length::Killed => {
            told("tested", "node --test").tells("judging").awaits(&["judge killed"])
        }
        "read" => told("tested", "node --test"),
        "tested" => told(
            "tried",
            "code=0; echo x | node src/cli.js nope || code=$?; echo \"it ended with $code\"",
        ),
        _ => {
            let found = |sign: &str| talk.results.iter().any(|result| result.contains(sign));
            let tests = if found("== tested 0") { "all tests pass" } else { "tests fail" };
            let mistakes = if found("it ended with 2") {
                "as the spec has it"
            } else {
                "DRIFT: src/cli.js:6 ends with 1"
            };
            let secret = if found(SECRET) { "read the criteria" } else { "found no criteria" };
            // The judge's prompt lists the observations.
            let noted: Vec<String> = talk
                .prompt
                .lines()
                .filter(|line| line.starts_with("- `") && line.contains("Observation: "))
                .map(|line| {
                    let word = if line.contains("reverse") { "PROMOTE" } else { "DISMISS" };
                    format!(
                        "{word} {}",
                        line.trim_start_matches("- `").split('`').next().unwrap_or_default()
                    )
                })
                .collect();
            Step::text(format!(
                "I have {secret} and tried it: {tests}. Unknown commands: {mistakes}.\n{}",
                noted.join("\n")
            ))
        }
    }
}

/// Turns the judge's prose into the structured document, and adds nothing.
fn structure(talk: &Talk) -> Step {
    let words = talk.told("<evaluation>", "</evaluation>").unwrap_or_default();
    let drift = words.contains("DRIFT");
    let fails = words.contains("tests fail") || words.contains("found no criteria");
    let decided = |line: &str| {
        let (word, id) = line.split_once(' ')?;
        let action = match word {
            "PROMOTE" => "promote",
            "DISMISS" => "dismiss",
            _ => return None,
        };
        Some(json!({"beadId": id, "action": action, "reason": "as the judge says",
                "mergeWith": null}))
    };
    let issue =
        json!({"section": "Mistakes", "description": "the exit code is 1", "severity": "major"});
    let bead = json!({"title": "Unknown commands end with 2", "description": "See Mistakes",
        "type": "bug"});
    Step::document(json!({
        "status": "success",
        "specDrift": {"detected": drift, "issues": if drift { vec![issue] } else { vec![] }},
        "acceptance": {
            "passed": !drift && !fails,
            "results": [{"criterion": "exit code 2", "passed": !drift, "evidence": words.trim()}],
        },
        "observations": words.lines().filter_map(decided).collect::<Vec<_>>(),
        "newBeads": if drift { vec![bead] } else { vec![] },
    }))
}
