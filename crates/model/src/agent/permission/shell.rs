//! Splits a line of shell into its commands and their words, as far as that is possible without
//! running it.

/// The commands of a line of shell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Line {
    /// The words of each simple command, without their quotes and without redirections. The
    /// commands of substitutions are included.
    pub commands: Vec<Vec<String>>,
    /// The output goes to a file, which may be created or overwritten.
    pub writes: bool,
    /// Part of its effect cannot be seen: a substitution, a quote without an end, an encoded text.
    pub unseen: bool,
}

/// Destinations of output that are no ordinary files.
const QUIET: [&str; 4] = ["/dev/null", "/dev/stderr", "/dev/stdout", "/dev/tty"];

/// The kind of text that the reader is inside of, by its closing mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inside {
    /// `"…"`
    Quotes,
    /// `(…)` and `$(…)`
    Parentheses,
    /// `` `…` ``
    Backticks,
}

/// The role of the next word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Next {
    #[default]
    Word,
    /// The file that is written to, or the stream, after `>&`.
    Output,
    Input,
    /// The line that ends the here-document below.
    Delimiter,
}

#[derive(Default)]
struct Reader {
    line: Line,
    words: Vec<String>,
    /// The word that is being read.
    word: Option<String>,
    inside: Vec<Inside>,
    next: Next,
    /// The delimiters of the here-documents that begin on the next line.
    delimiters: Vec<String>,
}

/// Reads one or several lines of shell.
pub fn read(text: &str) -> Line {
    let mut reader = Reader::default();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        rest = match reader.inside.last() {
            Some(Inside::Quotes) => reader.quoted(c, rest),
            _ => reader.plain(c, rest),
        };
    }
    reader.end_command();
    reader.line.unseen |= !reader.inside.is_empty();
    reader.line
}

impl Reader {
    /// Reads `c`, which is outside of quotes, and as much of the following text as belongs to it.
    /// Returns the rest.
    fn plain<'a>(&mut self, c: char, rest: &'a str) -> &'a str {
        match c {
            '\n' => {
                self.end_command();
                return self.skip_texts(rest);
            }
            ';' | '|' => self.end_command(),
            '&' if rest.starts_with('>') => {
                self.end_word();
                return self.output(&rest[1..]);
            }
            '&' => self.end_command(),
            '(' => self.open(Inside::Parentheses),
            ')' => {
                self.end_command();
                if self.inside.last() == Some(&Inside::Parentheses) {
                    self.inside.pop();
                }
            }
            '`' => self.backtick(),
            '>' => {
                self.end_stream();
                return self.output(rest);
            }
            '<' => {
                self.end_stream();
                return self.input(rest);
            }
            '\'' => return self.literal(rest),
            '"' => {
                self.word.get_or_insert_default();
                self.inside.push(Inside::Quotes);
            }
            '\\' => return self.escaped(rest),
            '$' if rest.starts_with('(') => {
                self.line.unseen = true;
                self.open(Inside::Parentheses);
                return &rest[1..];
            }
            '$' => {
                // `$'…'` may hold encoded characters.
                self.line.unseen |= rest.starts_with('\'');
                self.push(c);
            }
            '#' if self.word.is_none() => return rest.find('\n').map_or("", |end| &rest[end..]),
            c if c.is_whitespace() => self.end_word(),
            c => self.push(c),
        }
        rest
    }

    fn quoted<'a>(&mut self, c: char, rest: &'a str) -> &'a str {
        match c {
            '"' => drop(self.inside.pop()),
            '\\' => match rest.chars().next() {
                Some('\n') => return &rest[1..],
                Some(next @ ('"' | '\\' | '$' | '`')) => {
                    self.push(next);
                    return &rest[1..];
                }
                _ => self.push(c),
            },
            '$' if rest.starts_with('(') => {
                self.line.unseen = true;
                self.open(Inside::Parentheses);
                return &rest[1..];
            }
            '`' => self.backtick(),
            c => self.push(c),
        }
        rest
    }

    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    fn open(&mut self, what: Inside) {
        self.end_command();
        self.inside.push(what);
    }

    fn backtick(&mut self) {
        self.line.unseen = true;
        if self.inside.last() == Some(&Inside::Backticks) {
            self.end_command();
            self.inside.pop();
        } else {
            self.open(Inside::Backticks);
        }
    }

    fn literal<'a>(&mut self, rest: &'a str) -> &'a str {
        let word = self.word.get_or_insert_default();
        match rest.split_once('\'') {
            Some((text, after)) => {
                word.push_str(text);
                after
            }
            None => {
                self.line.unseen = true;
                word.push_str(rest);
                ""
            }
        }
    }

    fn escaped<'a>(&mut self, rest: &'a str) -> &'a str {
        let Some(next) = rest.chars().next() else { return rest };
        if next != '\n' {
            self.push(next);
        }
        &rest[next.len_utf8()..]
    }

    /// Ends the word before `<` or `>`; a number there names a stream and is dropped.
    fn end_stream(&mut self) {
        self.word.take_if(|word| word.chars().all(|c| c.is_ascii_digit()));
        self.end_word();
    }

    fn output<'a>(&mut self, rest: &'a str) -> &'a str {
        if rest.starts_with('(') {
            self.line.unseen = true;
            return rest;
        }
        self.next = Next::Output;
        let rest = rest.strip_prefix('>').or_else(|| rest.strip_prefix('|')).unwrap_or(rest);
        match rest.strip_prefix('&') {
            Some(stream) => {
                let end =
                    stream.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(stream.len());
                if end > 0 {
                    self.next = Next::Word;
                }
                &stream[end..]
            }
            None => rest,
        }
    }

    fn input<'a>(&mut self, rest: &'a str) -> &'a str {
        if rest.starts_with('(') {
            self.line.unseen = true;
            return rest;
        }
        if let Some(rest) = rest.strip_prefix("<<") {
            self.next = Next::Input;
            return rest;
        }
        if let Some(rest) = rest.strip_prefix('<') {
            self.next = Next::Delimiter;
            return rest.strip_prefix('-').unwrap_or(rest);
        }
        self.next = Next::Input;
        rest.strip_prefix('&').unwrap_or(rest)
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        match std::mem::take(&mut self.next) {
            Next::Word => self.words.push(word),
            Next::Output => self.line.writes |= !QUIET.contains(&word.as_str()),
            Next::Input => {}
            Next::Delimiter => {
                // A here-document without quotes around its delimiter may hold substitutions.
                self.line.unseen = true;
                self.delimiters.push(word);
            }
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        if std::mem::take(&mut self.next) == Next::Output {
            self.line.writes = true;
        }
        let words = std::mem::take(&mut self.words);
        if !words.is_empty() {
            self.line.commands.push(words);
        }
    }

    /// Skips the here-documents that the line before announced.
    fn skip_texts<'a>(&mut self, mut rest: &'a str) -> &'a str {
        for delimiter in std::mem::take(&mut self.delimiters) {
            loop {
                let Some((line, after)) = rest.split_once('\n') else { return "" };
                rest = after;
                if line.trim_start_matches('\t') == delimiter {
                    break;
                }
            }
        }
        rest
    }
}

/// Returns the name of a program without its directory.
pub fn basename(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Returns name and value if a word before a command sets a variable.
pub fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (begins && plain).then_some((name, value))
}

/// Returns the script that is an argument of a shell: `bash -lc SCRIPT`.
pub fn script(words: &[String]) -> Option<&str> {
    const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "ash", "ksh", "mksh", "fish"];
    let (first, rest) = words.split_first()?;
    if !SHELLS.contains(&basename(first)) {
        return None;
    }
    let is_flag =
        |word: &String| word.starts_with('-') && !word.starts_with("--") && word.contains('c');
    let at = rest.iter().position(is_flag)?;
    rest[at + 1..].iter().find(|word| !word.starts_with(['-', '+'])).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_split_into_commands_and_words() {
        for (text, commands) in [
            ("ls -la src", &[&["ls", "-la", "src"][..]][..]),
            ("ls\nrm -rf ~", &[&["ls"], &["rm", "-rf", "~"]]),
            ("a && b || c; d & e | f", &[&["a"], &["b"], &["c"], &["d"], &["e"], &["f"]]),
            ("grep 'a|b;c' \"x && y\" z\\ z", &[&["grep", "a|b;c", "x && y", "z z"]]),
            ("A=1 b --c=\"d\" # e; f", &[&["A=1", "b", "--c=d"]]),
            ("cat <<'E' -\nrm x\nE\nls", &[&["cat", "-"], &["ls"]]),
            ("a 2>&1 >/dev/null 2> /dev/null <in", &[&["a"]]),
            ("(cd x; ls)", &[&["cd", "x"], &["ls"]]),
            ("echo \"$(rm x)\"", &[&["echo", ""], &["rm", "x"]]),
            ("echo a\\\nb", &[&["echo", "ab"]]),
            ("''", &[&[""]]),
            ("", &[]),
        ] {
            assert_eq!(read(text).commands, commands, "{text}");
        }
    }

    #[test]
    fn line_reports_writes_and_unparsed_parts() {
        for (text, writes, unseen) in [
            ("echo '>' \">\" 2>&1", false, false),
            ("echo a>f", true, false),
            ("echo a >> f", true, false),
            ("echo a &> f", true, false),
            ("echo a >& f", true, false),
            ("echo a >", true, false),
            ("echo a >/dev/null 2>/dev/stderr", false, false),
            ("echo $HOME ${x}", false, false),
            ("echo $(make)", false, true),
            ("echo `make`", false, true),
            ("echo \"`make`\"", false, true),
            ("echo '$(make)'", false, false),
            ("diff <(a) b", false, true),
            ("echo $'\\x3e'", false, true),
            ("echo 'a", false, true),
            ("echo \"a", false, true),
            ("cat <<E\n$(make)\nE", false, true),
        ] {
            let line = read(text);
            assert_eq!((line.writes, line.unseen), (writes, unseen), "{text}: {line:?}");
        }
    }

    #[test]
    fn script_of_a_shell_is_found() {
        let of = |text: &str| {
            read(text).commands.first().and_then(|words| script(words).map(String::from))
        };
        assert_eq!(of("bash -lc 'ls x'").as_deref(), Some("ls x"));
        assert_eq!(of("/bin/sh -e -c 'ls x' sh").as_deref(), Some("ls x"));
        assert_eq!(of("sh run.sh"), None);
        assert_eq!(of("grep -c x"), None);
    }
}
