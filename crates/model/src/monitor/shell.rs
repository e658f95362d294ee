//! Guesses which files a shell command writes, and its essential part. The guesses only feed the
//! monitors; no permission decision uses them.

/// The most files that are taken from one command.
const MOST: usize = 20;

/// Returns a command without the parts that only limit its output: `cargo test 2>&1 | tail -40`
/// becomes `cargo test`.
pub fn essence(command: &str) -> &str {
    let mut command = command.trim();
    loop {
        let before = command;
        for end in ["|| true", "2>&1", "; true", "2>/dev/null"] {
            command = command.strip_suffix(end).unwrap_or(command).trim_end();
        }
        if let Some((head, last)) = command.rsplit_once('|')
            && ["tail", "head", "cat", "less"]
                .contains(&last.split_whitespace().next().unwrap_or_default())
            && !head.ends_with('|')
        {
            command = head.trim_end();
        }
        if command == before {
            return command;
        }
    }
}

/// Returns the files that a command writes, as far as its text shows it: redirections, `tee`,
/// in-place editing, and `write_text` or `open(…, 'w')` in a script. A command that begins with
/// `cd` yields only absolute paths, because its relative paths start elsewhere.
pub fn written(command: &str) -> Vec<String> {
    let (first, body) = command.split_once('\n').unwrap_or((command, ""));
    let mut files: Vec<String> = first.split(['|', ';', '&']).flat_map(by_program).collect();
    files.extend(redirected(first));
    files.extend(scripted(first).chain(scripted(body)));
    let moves = first.trim_start().starts_with("cd ");
    files.retain(|file| is_file(file) && (!moves || file.starts_with('/')));
    files.truncate(MOST);
    files
}

/// Returns whether a word is a usable file name: no variable, no device, no log file, not too long.
fn is_file(file: &str) -> bool {
    (1..=crate::monitor::LONGEST_PATH).contains(&file.len())
        && !file.contains(['$', '*', '`', '('])
        && !file.starts_with("/dev/")
        && !file.ends_with(".log")
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().map(|word| word.trim_matches(['\'', '"']))
}

/// Returns the files written by `tee FILE`, `sed -i … FILE`, `perl -pi … FILE`.
fn by_program(part: &str) -> Vec<String> {
    let mut words = words(part).skip_while(|word| *word == "sudo");
    let Some(program) = words.next() else { return vec![] };
    let rest: Vec<&str> = words.collect();
    let mut plain = rest.iter().filter(|word| !word.starts_with(['-', '<', '>']));
    let in_place = rest.iter().any(|word| word.starts_with("-i") || word.starts_with("-pi"));
    match program {
        "tee" => plain.map(ToString::to_string).collect(),
        "sed" | "perl" if in_place => {
            plain.next_back().map(ToString::to_string).into_iter().collect()
        }
        _ => vec![],
    }
}

/// Returns the targets of `>` and `>>` outside quotes.
fn redirected(line: &str) -> Vec<String> {
    let (mut files, mut quote) = (Vec::new(), None);
    let mut signs = line.char_indices().peekable();
    while let Some((at, sign)) = signs.next() {
        match (quote, sign) {
            (Some(open), _) if sign == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(sign),
            // Skip the arrows of code (`->`, `=>`) and file descriptors (`>&`).
            (None, '>') if !line[..at].ends_with(['-', '=']) => {
                while signs.next_if(|(_, next)| *next == '>').is_some() {}
                let rest = &line[signs.peek().map_or(line.len(), |(next, _)| *next)..];
                if !rest.starts_with('&') {
                    let file = words(rest)
                        .next()
                        .map(|word| word.trim_end_matches([';', ')', '&', '|', '\'', '"']));
                    files.extend(file.map(String::from));
                }
            }
            _ => {}
        }
    }
    files
}

/// Returns the files written by `Path('FILE')…write_text`, `open('FILE', 'w')`.
fn scripted(script: &str) -> impl Iterator<Item = String> {
    let writes = script.contains(".write_text(") || script.contains(".write_bytes(");
    let paths = script.split("Path(").skip(usize::from(writes)).filter(move |_| writes);
    let opened = script.split("open(").skip(1).filter(|rest| {
        let call = rest.split(')').next().unwrap_or_default();
        ["'w", "\"w", "'a", "\"a"].iter().any(|mode| call.contains(mode))
    });
    let quoted = |rest: &str| {
        let open = rest.chars().next().filter(|sign| matches!(sign, '\'' | '"'))?;
        Some(rest[1..].split(open).next()?.to_string())
    };
    paths.chain(opened).filter_map(quoted).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_filters_are_not_part_of_a_command() {
        for trimmed in [
            "cargo test 2>&1 | tail -40",
            "cargo test || true",
            "cargo test 2>&1 | head -5 | cat",
            " cargo test ",
        ] {
            assert_eq!(essence(trimmed), "cargo test", "{trimmed}");
        }
        for whole in ["cargo test | grep FAILED", "a || tail -f b", "cat a"] {
            assert_eq!(essence(whole), whole);
        }
    }

    #[test]
    fn files_written_by_a_command_are_recognized() {
        for (command, files) in [
            ("cat > a/b.tf <<'EOT'\nx > y\nEOT", vec!["a/b.tf"]),
            ("echo 'a > b' >> \"c.txt\"", vec!["c.txt"]),
            ("printf x | tee -a one two", vec!["one", "two"]),
            ("sed -i 's/a/b/g' c.rs && perl -pi -e 's/a/b/' d.rs", vec!["c.rs", "d.rs"]),
            (
                "python3 - <<'E'\nfrom pathlib import Path\np = Path('x/y.tf')\np.write_text('a')\
                 \nE",
                vec!["x/y.tf"],
            ),
            ("python -c \"open('out.csv', 'w').write('a')\"", vec!["out.csv"]),
            ("cargo test 2>&1 >/dev/null", vec![]),
            ("make > build.log; grep -n '->' a.rs; sed 's/a/b/' c.rs", vec![]),
            ("cd /else && echo x > here && echo y > /there", vec!["/there"]),
            ("python -c \"print(open('in.csv').read())\"", vec![]),
        ] {
            assert_eq!(written(command), files, "{command}");
        }
    }
}
