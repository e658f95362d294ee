//! Finds configured arguments that choose the tools of pi.

use crate::flags::{Flag, flag_words};

/// Flags that choose the tools.
const TOOLS: [&str; 8] =
    ["--tools", "-t", "--exclude-tools", "-xt", "--no-tools", "-nt", "--no-builtin-tools", "-nbt"];

/// Whether the configuration itself chooses the agent's tools.
pub(super) fn names_tools(args: &[String]) -> bool {
    Flag::all(&flag_words(None, args)).any(|flag| TOOLS.contains(&flag.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_about_tools_are_found() {
        let names = |args: &[&str]| {
            let args: Vec<_> = args.iter().map(|arg| (*arg).to_string()).collect();
            names_tools(&args)
        };
        assert!(names(&["--tools", "read"]) && names(&["-xt", "bash"]) && names(&["--tools=read"]));
        assert!(!names(&[]) && !names(&["--thinking", "high"]));
    }
}
