//! `tree`: the supervision tree, drawn.

use crate::render::{DIM, RESET, YELLOW, bytes, safe, state_color};
use muleteer_protocol::v1::TreeNode;
use std::fmt::Write as _;

/// Draws one line for each node: its name, what its children share, its state, its restarts, its
/// process.
pub fn draw(root: &TreeNode) -> String {
    let mut lines = Vec::new();
    collect(root, "", "", &mut lines);
    let width = lines.iter().map(|(left, _)| left.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (left, node) in lines {
        let padding = " ".repeat(width - left.chars().count());
        let _ = writeln!(text, "{}", format!("{left}{padding}  {}", facts(node)).trim_end());
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

fn facts(node: &TreeNode) -> String {
    let strategy = if node.strategy == "-" { "" } else { node.strategy.as_str() };
    let color = state_color(&node.state);
    let mut text =
        format!("{DIM}{strategy:<12}  {:<9}{RESET}  {color}{}{RESET}", node.restart, node.state);
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
