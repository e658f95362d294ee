//! `tree`: the supervision tree, drawn.

use crate::render::{DIM, RESET, YELLOW, bytes, clip_line, safe, state_color};
use anstream::adapter::strip_str;
use muleteer_protocol::v1::TreeNode;
use std::fmt::Write as _;
use unicode_width::UnicodeWidthStr;

/// Draws one line for each node: its name, what its children share, its state, its restarts, its
/// process. A narrow terminal leaves out which ends lead to a restart, then what children share;
/// `None` is no terminal.
pub fn draw(root: &TreeNode, columns: Option<usize>) -> String {
    let Some(columns) = columns else { return with(root, Facts::All) };
    let fits =
        |text: &String| strip_str(text).to_string().lines().all(|line| line.width() <= columns);
    let widest_first = [Facts::All, Facts::NoRestart, Facts::StateOnly];
    let drawn = widest_first.into_iter().map(|facts| with(root, facts)).find(fits);
    let text = drawn.unwrap_or_else(|| with(root, Facts::StateOnly));
    text.lines().map(|line| format!("{}\n", clip_line(line, columns))).collect()
}

/// The facts about a node that have a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Facts {
    All,
    NoRestart,
    StateOnly,
}

fn with(root: &TreeNode, shown: Facts) -> String {
    let mut lines = Vec::new();
    collect(root, "", "", &mut lines);
    let width = lines.iter().map(|(left, _)| left.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (left, node) in lines {
        let padding = " ".repeat(width - left.chars().count());
        let _ = writeln!(text, "{}", format!("{left}{padding}  {}", facts(node, shown)).trim_end());
    }
    text
}

fn collect<'a>(
    node: &'a TreeNode,
    lead: &str,
    below: &str,
    lines: &mut Vec<(String, &'a TreeNode)>,
) {
    lines.push((format!("{lead}{}", safe(&node.name)), node));
    for (at, child) in node.children.iter().enumerate() {
        let last = at + 1 == node.children.len();
        let (branch, trunk) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        collect(child, &format!("{below}{branch}"), &format!("{below}{trunk}"), lines);
    }
}

fn facts(node: &TreeNode, shown: Facts) -> String {
    let strategy = if node.strategy == "-" { "" } else { node.strategy.as_str() };
    let color = state_color(&node.state);
    let mut text = match shown {
        Facts::All => format!("{DIM}{strategy:<12}  {:<9}{RESET}  ", node.restart),
        Facts::NoRestart => format!("{DIM}{strategy:<12}{RESET}  "),
        Facts::StateOnly => String::new(),
    };
    let _ = write!(text, "{color}{}{RESET}", node.state);
    if node.restarts_in_window > 0 {
        let plural = if node.restarts_in_window == 1 { "" } else { "s" };
        let _ = write!(text, "  {YELLOW}{} restart{plural}{RESET}", node.restarts_in_window);
    }
    if let Some(process) = &node.process {
        let _ = write!(
            text,
            "  pid {}, {}, {:.0}% cpu",
            process.pid,
            bytes(process.rss_bytes),
            process.cpu_percent
        );
    }
    text
}
