//! Mail against small SMTP servers on the loopback interface.

#![allow(clippy::unwrap_used)]
use super::*;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(20);
/// The patience with a server that hangs. A loaded machine makes the steps before in this time.
const SHORT: Duration = Duration::from_secs(5);

/// A server of one connection. It answers each command by `answer`, and hangs if that is `None`.
struct Server {
    port: u16,
    lines: Receiver<String>,
    thread: JoinHandle<()>,
}

impl Server {
    fn begin(answer: fn(&str) -> Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Nobody reads before the end, so all lines of the longest mail must fit.
        let (seen, lines) = sync_channel(10_000);
        let thread = std::thread::spawn(move || {
            let stream = accept(&listener);
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut is_text, mut line) = (false, String::from("GREETING"));
            loop {
                let command = line.trim_end_matches(['\r', '\n']).to_string();
                seen.send(command.clone()).unwrap();
                let asks = if is_text { command == "." } else { true };
                if asks {
                    let asked = if is_text { "TEXT" } else { &command };
                    match answer(asked) {
                        Some(words) => say(&stream, words),
                        // The client ends the connection.
                        None => drop(reader.read_line(&mut String::new())),
                    }
                    is_text = !is_text && command == "DATA";
                }
                line.clear();
                if !matches!(reader.read_line(&mut line), Ok(1..)) {
                    return;
                }
            }
        });
        Self { port, lines, thread }
    }

    fn settings(&self) -> Mail {
        Mail {
            to: "me@example.org".into(),
            from: "muleteer@example.org".into(),
            server: "127.0.0.1".into(),
            port: Some(self.port),
            tls: MailTls::None,
            user: None,
        }
    }

    /// Returns what the client said, line by line.
    fn heard(self) -> Vec<String> {
        self.thread.join().unwrap();
        self.lines.into_iter().collect()
    }
}

/// Accepts one connection. A client that never comes, or that stops talking, fails the test instead
/// of blocking it for ever.
fn accept(listener: &TcpListener) -> TcpStream {
    let until = std::time::Instant::now() + 2 * PATIENCE;
    listener.set_nonblocking(true).unwrap();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(2 * PATIENCE)).unwrap();
                return stream;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(std::time::Instant::now() < until, "no client has connected");
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn say(mut stream: &TcpStream, words: &str) {
    let _ = stream.write_all(words.as_bytes());
    let _ = stream.write_all(b"\r\n");
}

/// Answers as a server that takes every mail.
fn good(command: &str) -> Option<&'static str> {
    Some(match command {
        "GREETING" => "220 here",
        "DATA" => "354 go on",
        "QUIT" => "221 bye",
        text if text.starts_with("EHLO") => "250-here\r\n250 AUTH PLAIN",
        text if text.starts_with("AUTH") => "235 welcome",
        _ => "250 ok",
    })
}

fn message(title: &str, text: &str) -> Message {
    Message { title: title.into(), text: text.into(), matters: vec![] }
}

#[tokio::test]
async fn text_of_an_agent_adds_no_header_and_no_recipient() {
    let server = Server::begin(good);
    let title = "Which colour?\r\nBcc: evil@example.org\r\n\r\nbody \u{85}\u{2028}\u{202e}x";
    let text = "first\n.\nRCPT TO:<evil@example.org>\r\n\u{1b}[31mlast";
    send(&server.settings(), None, &message(title, text), PATIENCE).await.unwrap();
    let heard = server.heard();
    let recipients: Vec<_> = heard.iter().filter(|line| line.starts_with("RCPT")).collect();
    // The second one is in the text of the mail.
    assert_eq!(recipients, ["RCPT TO:<me@example.org>", "RCPT TO:<evil@example.org>"]);
    let data = heard.iter().position(|line| line == "DATA").unwrap();
    assert!(heard.iter().position(|line| line == recipients[1]).unwrap() > data, "{heard:?}");
    let end = data + 1 + heard[data + 1..].iter().position(String::is_empty).unwrap();
    let (head, body) = (&heard[data + 1..end], &heard[end + 1..]);
    assert!(!head.iter().any(|line| line.starts_with("Bcc")), "{head:?}");
    assert!(head.iter().any(|line| line.starts_with("Subject: Which colour? Bcc:")), "{head:?}");
    assert!(head.contains(&"Auto-Submitted: auto-generated".to_string()), "{head:?}");
    assert_eq!(body[..4], ["first", "..", "RCPT TO:<evil@example.org>", "[31mlast"]);
}

#[tokio::test]
async fn long_text_is_cut_and_its_lines_are_short() {
    let server = Server::begin(good);
    let long = "ü".repeat(1_000_000);
    send(&server.settings(), None, &message(&long, &long), PATIENCE).await.unwrap();
    let heard = server.heard();
    let length: usize = heard.iter().map(String::len).sum();
    assert!(length < 4 * TEXT_LIMIT, "{length}");
    assert!(heard.iter().all(|line| line.len() <= 998), "RFC 5322");
}

#[tokio::test]
async fn server_that_hangs_before_the_mail_is_tried_again() {
    let hangs = ["GREETING", "EHLO", "MAIL", "RCPT", "DATA"].map(|hangs_at| async move {
        let server = Server::begin(match hangs_at {
            "GREETING" => |_| None,
            "EHLO" => |text| if text.starts_with("EHLO") { None } else { good(text) },
            "MAIL" => |text| if text.starts_with("MAIL") { None } else { good(text) },
            "RCPT" => |text| if text.starts_with("RCPT") { None } else { good(text) },
            _ => |text| if text == "DATA" { None } else { good(text) },
        });
        let error = send(&server.settings(), None, &message("a", "b"), SHORT).await.unwrap_err();
        assert!(matches!(error, MailError::Slow { .. }), "{hangs_at}: {error}");
        assert!(!error.is_uncertain() && !error.is_lasting(), "{hangs_at}");
        server.heard();
    });
    futures_util::future::join_all(hangs).await;
}

#[tokio::test]
async fn server_that_hangs_with_the_mail_is_not_tried_again() {
    let server = Server::begin(|text| if text == "TEXT" { None } else { good(text) });
    let error = send(&server.settings(), None, &message("a", "b"), SHORT).await.unwrap_err();
    assert!(error.is_uncertain(), "{error}");
    // One that hangs afterwards has the mail.
    let server = Server::begin(|text| if text == "QUIT" { None } else { good(text) });
    send(&server.settings(), None, &message("a", "b"), PATIENCE).await.unwrap();
}

#[tokio::test]
async fn refusal_is_quoted_and_lasts_if_the_server_says_so() {
    for (code, lasts) in [("550 no such \u{1b}[31m user", true), ("451 later", false)] {
        let server = Server::begin(match lasts {
            true => |text| match text.starts_with("RCPT") {
                true => Some("550 no such \u{1b}[31m user"),
                false => good(text),
            },
            false => |text| match text {
                "TEXT" => Some("451 later"),
                text => good(text),
            },
        });
        let error = send(&server.settings(), None, &message("a", "b"), PATIENCE).await.unwrap_err();
        let words = error.to_string();
        assert!(words.contains(&code[..3]) && !words.contains('\u{1b}'), "{words}");
        assert_eq!((error.is_lasting(), error.is_uncertain()), (lasts, false), "{words}");
    }
}

#[tokio::test]
async fn password_is_sent_and_never_quoted() {
    let password = || Some("s3cret".to_string());
    let server = Server::begin(good);
    let settings = Mail { user: Some("me".into()), ..server.settings() };
    send(&settings, password(), &message("a", "b"), PATIENCE).await.unwrap();
    assert!(server.heard().contains(&"AUTH PLAIN AG1lAHMzY3JldA==".to_string()));
    let server = Server::begin(|text| match text.starts_with("AUTH") {
        true => Some("535 s3cret AG1lAHMzY3JldA== is wrong"),
        false => good(text),
    });
    let settings = Mail { user: Some("me".into()), ..server.settings() };
    let error = send(&settings, password(), &message("a", "b"), PATIENCE).await.unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(shown.contains("535") && !shown.contains("s3cret") && !shown.contains("AG1l"));
    assert!(error.is_lasting(), "servers lock accounts");
    let error = send(&settings, None, &message("a", "b"), PATIENCE).await.unwrap_err();
    assert!(matches!(error, MailError::NoPassword), "{error}");
}

#[tokio::test]
async fn nothing_is_sent_where_encryption_is_wanted_and_missing() {
    let server = Server::begin(good);
    let settings = Mail { user: Some("me".into()), tls: MailTls::Starttls, ..server.settings() };
    let password = Some("s3cret".to_string());
    let error = send(&settings, password, &message("a", "b"), PATIENCE).await.unwrap_err();
    assert!(matches!(error, MailError::NoTls { .. }), "{error}");
    let heard = server.heard();
    assert_eq!(heard.len(), 2, "{heard:?}");
    let server = Server::begin(good);
    let settings = Mail { tls: MailTls::Tls, ..server.settings() };
    let patience = Duration::from_secs(2);
    assert!(send(&settings, None, &message("a", "b"), patience).await.is_err());
}

#[tokio::test]
async fn server_that_is_away_is_named() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = Mail {
        to: "me@example.org".into(),
        from: "me@example.org".into(),
        server: "127.0.0.1".into(),
        port: Some(port),
        tls: MailTls::None,
        user: None,
    };
    let error = send(&settings, None, &message("a", "b"), PATIENCE).await.unwrap_err();
    assert!(matches!(error, MailError::Failed { .. }), "{error}");
    assert!(error.to_string().starts_with("127.0.0.1 cannot be used: "), "{error}");
}
