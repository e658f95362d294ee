//! The web page for a pull request, derived from the address of the remote.

/// The kind of server behind a remote, recognized by its host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forge {
    GitHub,
    GitLab,
    /// Gitea, Forgejo, and Codeberg, which runs Forgejo.
    Gitea,
    Bitbucket,
    /// Bitbucket on a company's own server.
    BitbucketServer,
}

/// The parts of a remote's address, without credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Address {
    /// The scheme of the web server.
    scheme: &'static str,
    /// With the web server's port, if the address has one.
    host: String,
    path: String,
    /// The port of an ssh address.
    ssh_port: Option<u16>,
}

/// Bitbucket Server serves git over HTTP below this path, and over ssh at this port.
const SCM: &str = "scm";
const BITBUCKET_PORT: u16 = 7999;
/// Hosts for which users define ssh aliases, to choose a key.
const ALIASED: [&str; 4] = ["github.com", "gitlab.com", "bitbucket.org", "codeberg.org"];

/// Returns the page for a pull request from `branch` to `base`. Returns `None` if the host is of no
/// known kind, or if the remote is a directory.
pub fn pull_request_page(remote: &str, base: &str, branch: &str) -> Option<String> {
    let address = Address::parse(remote)?;
    let forge = address.forge()?;
    let segments: Vec<&str> = address.path.split('/').collect();
    let is_plain = segments.iter().all(|segment| !matches!(*segment, "" | "." | ".."));
    if !is_plain || segments.len() < 2 || base.is_empty() || branch.is_empty() {
        return None;
    }
    let path: Vec<String> = segments.iter().map(|segment| encode(segment, "%~+:@!$,")).collect();
    let top = format!("{}://{}", address.scheme, address.host);
    // Slashes of a branch name stay in the path of the page.
    let (base_path, branch_path) = (encode(base, "/+@!$,"), encode(branch, "/+@!$,"));
    let (base, branch) = (encode(base, ""), encode(branch, ""));
    Some(match forge {
        Forge::GitHub if path.len() == 2 => {
            format!("{top}/{}/compare/{base_path}...{branch_path}?expand=1", path.join("/"))
        }
        Forge::GitLab => format!(
            "{top}/{}/-/merge_requests/new?merge_request%5Bsource_branch%5D={branch}\
             &merge_request%5Btarget_branch%5D={base}",
            path.join("/")
        ),
        Forge::Gitea => format!("{top}/{}/compare/{base_path}...{branch_path}", path.join("/")),
        Forge::Bitbucket if path.len() == 2 => {
            format!("{top}/{}/pull-requests/new?source={branch}&dest={base}&t=1", path.join("/"))
        }
        Forge::BitbucketServer => {
            let (repo, above) = path.split_last()?;
            let (project, above) = above.split_last()?;
            // The context path of the server precedes `scm` in the address.
            let context = match above.split_last() {
                Some((scm, context)) if scm == SCM => context,
                _ => &[],
            };
            let top = [top].iter().chain(context).map(String::as_str).collect::<Vec<_>>().join("/");
            let owner = match project.strip_prefix('~') {
                Some(user) => format!("users/{user}"),
                None => format!("projects/{}", project.to_uppercase()),
            };
            format!(
                "{top}/{owner}/repos/{repo}/pull-requests?create\
                 &sourceBranch=refs%2Fheads%2F{branch}\
                 &targetBranch=refs%2Fheads%2F{base}"
            )
        }
        Forge::GitHub | Forge::Bitbucket => return None,
    })
}

/// Returns the kind of server behind the remote, if its address shows it.
pub fn forge(remote: &str) -> Option<Forge> {
    Address::parse(remote)?.forge()
}

/// Returns a remote's address without user name and password, for display.
pub fn without_credentials(remote: &str) -> String {
    let Some((scheme, rest)) = remote.split_once("://") else { return remote.to_string() };
    let (authority, path) =
        rest.split_once('/').map_or((rest, None), |(authority, path)| (authority, Some(path)));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    match path {
        Some(path) => format!("{scheme}://{host}/{path}"),
        None => format!("{scheme}://{host}"),
    }
}

impl Address {
    fn parse(remote: &str) -> Option<Self> {
        let remote = remote.trim();
        if remote.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return None;
        }
        let (scheme, authority, path) = match remote.split_once("://") {
            Some((scheme, rest)) => {
                let (authority, path) = rest.split_once('/')?;
                (scheme.to_ascii_lowercase(), authority, path)
            }
            None => {
                // `user@host:path`, the scp-like form of ssh. A slash before the colon makes it a
                // local path.
                let host_end = if remote.rsplit('@').next()?.starts_with('[') {
                    remote.find("]:")? + 1
                } else {
                    remote.find(':')?
                };
                let (authority, path) = (&remote[..host_end], &remote[host_end + 1..]);
                if authority.contains('/') || authority.len() < 2 {
                    return None;
                }
                ("ssh".to_string(), authority, path)
            }
        };
        let host = authority.rsplit('@').next()?.to_ascii_lowercase();
        let (web, with_port) = match scheme.as_str() {
            "https" => ("https", true),
            "http" => ("http", true),
            // The ports of these schemes are not the web server's.
            "ssh" | "git" | "git+ssh" | "ssh+git" => ("https", false),
            _ => return None,
        };
        let port = if with_port { None } else { port(&host) };
        let host = if with_port { host } else { without_port(&host).to_string() };
        let host = match host.as_str() {
            "ssh.github.com" => "github.com".into(),
            "altssh.gitlab.com" => "gitlab.com".into(),
            "altssh.bitbucket.org" => "bitbucket.org".into(),
            _ if scheme.contains("ssh") => real_host(&host, port.is_some())?.into(),
            _ => host,
        };
        let path = path.split(['?', '#']).next()?.trim_matches('/');
        let path = path.strip_suffix(".git").unwrap_or(path);
        let usual =
            host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
        (usual && !host.is_empty() && !path.is_empty()).then(|| Self {
            scheme: web,
            host,
            path: path.into(),
            ssh_port: port,
        })
    }

    /// Returns the kind of server, by the host name or by features that only Bitbucket Server has
    /// in its addresses.
    fn forge(&self) -> Option<Forge> {
        if let Some(forge) = kind(&self.host) {
            return Some(forge);
        }
        let segments: Vec<&str> = self.path.split('/').collect();
        let is_server = match segments[..] {
            [.., SCM, project, _] if self.ssh_port.is_none() => is_project(project),
            [project, _] => self.ssh_port == Some(BITBUCKET_PORT) && is_project(project),
            _ => false,
        };
        is_server.then_some(Forge::BitbucketServer)
    }
}

/// Returns whether a segment is a project key of Bitbucket Server, or a user's personal project.
fn is_project(key: &str) -> bool {
    key.starts_with('~')
        || (key.starts_with(|c: char| c.is_ascii_alphabetic())
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
}

/// Returns the host behind a name in an ssh address, or `None` if only the user's ssh configuration
/// knows it. `github.com-work` is such an alias. So is a name without a dot, and a name below the
/// domain of a public forge.
fn real_host(name: &str, has_port: bool) -> Option<&str> {
    let named = |host: &&str| {
        name.strip_prefix(*host).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    if let Some(host) = ALIASED.into_iter().find(named) {
        return Some(host);
    }
    let top = name.rsplit('.').next().unwrap_or_default();
    let is_domain = has_port || name.contains('.') || name.contains(':');
    let is_odd = top.contains('-') && !top.starts_with("xn--");
    let is_foreign = ALIASED.iter().any(|host| name.ends_with(host));
    (is_domain && !is_odd && !is_foreign).then_some(name)
}

fn port(host: &str) -> Option<u16> {
    host.strip_prefix(without_port(host))?.strip_prefix(':')?.parse().ok()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') =>
        {
            name
        }
        _ => host,
    }
}

fn kind(host: &str) -> Option<Forge> {
    let host = without_port(host);
    let names = |part: &str| host.contains(part);
    Some(match host {
        "bitbucket.org" => Forge::Bitbucket,
        _ if names("github") => Forge::GitHub,
        _ if names("gitlab") => Forge::GitLab,
        _ if names("gitea") || names("forgejo") || names("codeberg") => Forge::Gitea,
        _ if names("bitbucket") => Forge::BitbucketServer,
        _ => return None,
    })
}

/// Percent-encodes all bytes except RFC 3986's unreserved characters and those in `keep`.
fn encode(text: &str, keep: &str) -> String {
    let is_plain = |byte: u8| {
        byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep.as_bytes().contains(&byte)
    };
    let one = |byte: u8| {
        if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUB: &str = "https://github.com/o/r/compare/main...muleteer/run-1?expand=1";
    const LAB: &str = "/-/merge_requests/new?merge_request%5Bsource_branch%5D=muleteer%2Frun-1\
                       &merge_request%5Btarget_branch%5D=main";

    fn page(remote: &str) -> Option<String> {
        pull_request_page(remote, "main", "muleteer/run-1")
    }

    #[test]
    fn each_form_of_an_address_leads_to_the_same_page() {
        for remote in [
            "https://github.com/o/r",
            "https://github.com/o/r.git",
            "https://github.com/o/r/",
            "https://github.com/o/r.git/",
            "HTTPS://GitHub.com/o/r.git",
            "https://user:p@ss@github.com/o/r.git",
            "https://x-access-token:ghp_secret@github.com/o/r.git",
            "git@github.com:o/r.git",
            "github.com:o/r",
            "git@github.com:/o/r.git",
            "ssh://git@github.com/o/r.git",
            "ssh://git@github.com:22/o/r.git",
            "ssh://git@ssh.github.com:443/o/r.git",
            "git+ssh://git@github.com/o/r",
            "git://github.com/o/r.git",
        ] {
            assert_eq!(page(remote).as_deref(), Some(HUB), "{remote}");
        }
    }

    #[test]
    fn each_forge_has_its_own_page() {
        for (remote, wanted) in [
            ("git@gitlab.com:group/sub/r.git", format!("https://gitlab.com/group/sub/r{LAB}")),
            (
                "https://gitlab.example.org:8443/g/r.git",
                format!("https://gitlab.example.org:8443/g/r{LAB}"),
            ),
            (
                "ssh://git@gitlab.example.org:2222/g/r.git",
                format!("https://gitlab.example.org/g/r{LAB}"),
            ),
            ("http://gitlab.local/g/r", format!("http://gitlab.local/g/r{LAB}")),
            (
                "git@codeberg.org:o/r.git",
                "https://codeberg.org/o/r/compare/main...muleteer/run-1".into(),
            ),
            (
                "https://gitea.example.org:3000/o/r",
                "https://gitea.example.org:3000/o/r/compare/main...muleteer/run-1".into(),
            ),
            (
                "ssh://git@forgejo.example.org:2222/o/r.git",
                "https://forgejo.example.org/o/r/compare/main...muleteer/run-1".into(),
            ),
            (
                "git@bitbucket.org:w/r.git",
                "https://bitbucket.org/w/r/pull-requests/new?source=muleteer%2Frun-1&dest=main&t=1"
                    .into(),
            ),
            (
                "https://me@bitbucket.example.org/scm/key/r.git",
                "https://bitbucket.example.org/projects/KEY/repos/r/pull-requests?create\
                 &sourceBranch=refs%2Fheads%2Fmuleteer%2Frun-1&targetBranch=refs%2Fheads%2Fmain"
                    .into(),
            ),
            (
                "ssh://git@bitbucket.example.org:7999/~me/r.git",
                "https://bitbucket.example.org/users/me/repos/r/pull-requests?create\
                 &sourceBranch=refs%2Fheads%2Fmuleteer%2Frun-1&targetBranch=refs%2Fheads%2Fmain"
                    .into(),
            ),
            ("https://github.example.org/o/r", HUB.replace("github.com", "github.example.org")),
            ("git@my-github.example.org:o/r", HUB.replace("github.com", "my-github.example.org")),
        ] {
            assert_eq!(page(remote), Some(wanted), "{remote}");
        }
    }

    #[test]
    fn ssh_alias_of_a_public_forge_leads_to_its_page_and_any_other_alias_to_none() {
        for remote in [
            "git@github.com-work:o/r.git",
            "git@GitHub.com-me.and-you:o/r.git",
            "ssh://git@github.com-work/o/r.git",
            "ssh://git@github.com-work:22/o/r.git",
            "github.com-work:o/r",
        ] {
            assert_eq!(page(remote).as_deref(), Some(HUB), "{remote}");
        }
        for (remote, host) in [
            ("git@gitlab.com-work:g/s/r.git", "https://gitlab.com/g/s/r/-/merge_requests/new?"),
            ("git@bitbucket.org-work:w/r.git", "https://bitbucket.org/w/r/pull-requests/new?"),
            ("git@codeberg.org-work:o/r.git", "https://codeberg.org/o/r/compare/"),
        ] {
            assert!(page(remote).is_some_and(|page| page.starts_with(host)), "{remote}");
        }
        for remote in [
            "git@gh:o/r.git",
            "git@github:o/r.git",
            "git@github-work:o/r.git",
            "ssh://git@gitlab-work/o/r.git",
            "git@work.github.com:o/r.git",
            "git@work-github.com:o/r.git",
            "git@github.example.org-work:o/r.git",
        ] {
            assert_eq!(page(remote), None, "{remote}");
        }
    }

    #[test]
    fn bitbucket_server_is_recognized_by_its_address_and_path() {
        let rest = "projects/PROJ/repos/repo/pull-requests?create\
                    &sourceBranch=refs%2Fheads%2Fmuleteer%2Frun-1&targetBranch=refs%2Fheads%2Fmain";
        for (remote, top) in [
            ("https://host/bitbucket/scm/PROJ/repo.git", "https://host/bitbucket"),
            (
                "https://u:p@code.example.org:8443/a/b/scm/proj/repo.git",
                "https://code.example.org:8443/a/b",
            ),
            (
                "https://bitbucket.example.org/git/scm/proj/repo",
                "https://bitbucket.example.org/git",
            ),
            ("https://code.example.org/scm/PROJ/repo.git", "https://code.example.org"),
            ("ssh://git@host:7999/proj/repo.git", "https://host"),
            ("ssh://git@code.example.org:7999/PROJ/repo.git", "https://code.example.org"),
        ] {
            assert_eq!(page(remote), Some(format!("{top}/{rest}")), "{remote}");
            assert_eq!(forge(remote), Some(Forge::BitbucketServer), "{remote}");
        }
        let of_user = page("https://host/bitbucket/scm/~me/r.git");
        assert!(
            of_user
                .is_some_and(|page| page.starts_with("https://host/bitbucket/users/me/repos/r/"))
        );
        for remote in [
            "https://git.example.org/scm/repo.git",
            "https://git.example.org/scm/a.b/repo.git",
            "https://git.example.org/scm/repo/space/name",
            "ssh://git@git.example.org:2222/proj/repo.git",
            "ssh://git@git.example.org:7999/a/proj/repo.git",
        ] {
            assert_eq!(page(remote), None, "{remote}");
        }
        let lab = page("https://gitlab.example.org/g/scm/proj/repo.git");
        assert!(lab.is_some_and(|page| page.contains("/-/merge_requests/")));
    }

    #[test]
    fn remote_without_a_forge_has_no_page() {
        for remote in [
            "",
            "/srv/git/github.com/o/r.git",
            "../github.com/r.git",
            "./github.com:o/r",
            "file:///srv/github.com/o/r.git",
            "https://git.example.org/o/r.git",
            "https://github.com/o",
            "https://github.com/o/r/x",
            "https://github.com/../r",
            "https://github.com//r",
            "https://github.com",
            "git@github.com:",
            "c:github",
            "ext::sh -c github.com/o/r",
            "git@github.com:o/r\nx",
        ] {
            assert_eq!(page(remote), None, "{remote}");
        }
    }

    #[test]
    fn names_are_encoded_and_credentials_are_left_out() {
        let page = pull_request_page("https://u:secret@gitlab.com/g/r", "a&b", "c d#\u{e4}")
            .expect("a page");
        assert!(
            page.ends_with(
                "source_branch%5D=c%20d%23%C3%A4&merge_request%5Btarget_branch%5D=a%26b"
            ),
            "{page}"
        );
        assert!(!page.contains("secret"));
        let page = pull_request_page("git@github.com:o/r", "release/1.0", "x?y%z").expect("a page");
        assert!(page.ends_with("/compare/release/1.0...x%3Fy%25z?expand=1"), "{page}");
        for (remote, shown) in [
            ("https://u:p@ss@h.org/o/r", "https://h.org/o/r"),
            ("https://token@h.org", "https://h.org"),
            ("git@h.org:o/r", "git@h.org:o/r"),
            ("/srv/x@y/z", "/srv/x@y/z"),
            ("https://h.org/a@b/c", "https://h.org/a@b/c"),
        ] {
            assert_eq!(without_credentials(remote), shown);
        }
        assert_eq!(forge("git@github.com:o/r"), Some(Forge::GitHub));
        assert_eq!(forge("/srv/o/r"), None);
    }
}
