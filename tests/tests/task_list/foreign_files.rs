//! Files of other programs: `issues.jsonl` of `bd`, and lists of other harnesses.

#![allow(clippy::unwrap_used)]

use muleteer_tests::Output;
use muleteer_tests::task_list::Scene;
use serde_json::{Value, json};

const MEMORY: &str = r#"{"_type":"memory","key":"k","value":"v"}"#;

fn bead(scene: &Scene, args: &[&str]) -> Output {
    let args = [&["bead"], args].concat();
    scene.world.muleteer(&args).current_dir(&scene.repo.path).run()
}

#[test]
fn issues_file_of_bd_is_imported_and_its_memories_survive_an_export() {
    let scene = Scene::new();
    let times = r#""created_at":"2026-01-01T00:00:00Z","updated_at":null"#;
    let lines = [
        MEMORY.to_string(),
        format!(r#"{{"_type":"issue","id":"b-1","title":"gone","status":"tombstone",{times}}}"#),
        format!(
            r#"{{"_type":"issue","id":"b-2","title":"x","status":"open","labels":null,"due":7,
            "dependencies":[{{"issue_id":"b-2","depends_on_id":"b-1","type":"blocks"}}],{times}}}"#
        )
        .replace('\n', ""),
    ];
    scene.repo.write("issues.jsonl", &(lines.join("\n") + "\n"));
    let imported = bead(&scene, &["import", "issues.jsonl", "--json"]).expect_code(0).json();
    assert_eq!(imported["imported"], 2);
    assert!(imported["warnings"][0].as_str().unwrap().contains("1 memory"), "{imported}");
    let ready = bead(&scene, &["ready", "--json"]).expect_code(0).stdout;
    assert!(ready.contains("b-2") && !ready.contains("b-1\",\"title"), "{ready}");
    bead(&scene, &["export", "issues.jsonl"]).expect_code(0);
    let text = scene.repo.read("issues.jsonl");
    let written: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(written.len(), 3, "{text}");
    assert!(text.lines().any(|line| line == MEMORY), "{text}");
    let second = written.iter().find(|bead| bead["id"] == "b-2").unwrap();
    assert_eq!((&second["_type"], &second["due"]), (&json!("issue"), &json!(7)));
    assert!(written.iter().all(|bead| bead["updated_at"] != ""), "{text}");
    // Null values are exported as null again, and readers of the verbs get other values.
    assert_eq!(
        (second.get("labels"), second.get("updated_at")),
        (Some(&json!(null)), Some(&json!(null)))
    );
    let shown = bead(&scene, &["show", "b-2", "--json"]).expect_code(0).json();
    assert_eq!((&shown["labels"], shown.get("updated_at")), (&json!([]), None));
    // Any other file and stdout get the memories that were imported.
    bead(&scene, &["export", "other.jsonl"]).expect_code(0);
    let out = bead(&scene, &["export"]).expect_code(0).stdout;
    for text in [scene.repo.read("other.jsonl"), out] {
        assert_eq!(text.lines().filter(|line| *line == MEMORY).count(), 1, "{text}");
    }
    bead(&scene, &["import", "issues.jsonl"]).expect_code(0);
    let added = scene.tasks(&["import", "issues.jsonl", "--json"]).expect_code(0).json();
    assert_eq!(added["added"], json!(["b-2"]));
    scene.end();
}

#[test]
fn issues_that_another_program_wrote_with_nulls_are_exported_unchanged() {
    let scene = Scene::new();
    let line = concat!(
        r#"{"id":"b-1","title":"x","description":null,"status":null,"priority":null,"#,
        r#""issue_type":null,"labels":null,"dependencies":[{"depends_on_id":"b-2","#,
        r#""issue_id":null,"type":null}],"created_at":null,"updated_at":null,"closed_at":null,"#,
        r#""close_reason":null,"due":null}"#,
    );
    let other = concat!(
        r#"{"id":"b-2","title":"y","description":"","status":"open","priority":2,"#,
        r#""issue_type":"task","labels":[],"dependencies":[],"closed_at":null,"#,
        r#""close_reason":null}"#,
    );
    let text = format!("{line}\n{other}\n");
    scene.repo.write("issues.jsonl", &text);
    bead(&scene, &["import", "issues.jsonl"]).expect_code(0);
    let out = bead(&scene, &["export"]).expect_code(0).stdout;
    assert_eq!(out, text);
    let ready = bead(&scene, &["ready", "--json"]).expect_code(0).stdout;
    assert!(ready.contains("b-2") && !ready.contains("b-1"), "{ready}");
    bead(&scene, &["update", "b-1", "--status", "in_progress"]).expect_code(0);
    let out = bead(&scene, &["export"]).expect_code(0).stdout;
    assert!(out.contains("\"status\":\"in_progress\"") && out.contains("\"labels\":null"), "{out}");
    scene.end();
}

#[test]
fn list_with_checkpoints_of_another_shape_is_shown_and_worked_on() {
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    let mut list = scene.list();
    let foreign = json!([{"ts": "2026-03-22T15:06:05Z", "message": "task claimed"}]);
    list["tasks"][0]["checkpoints"] = foreign.clone();
    list["tasks"][0]["error_log"] = json!([{"ts": "t", "error": "e"}]);
    scene.repo.write("harness-tasks.json", &list.to_string());
    scene.tasks(&["status"]).expect_code(0);
    scene.add("Two", "true", &[]);
    assert_eq!(scene.list()["tasks"][0]["checkpoints"], foreign);
    scene.run("cat > /dev/null", &[]).expect_code(0);
    assert!(scene.is_done());
    assert_eq!(scene.list()["tasks"][0]["error_log"][0], json!({"ts": "t", "error": "e"}));
    scene.end();
}

#[test]
fn checklist_imported_twice_is_added_once() {
    let scene = Scene::new();
    scene.repo.write("PLAN.md", "- [ ] Ship\n  - [ ] Test\n- [ ] Rest\n");
    let import = || scene.tasks(&["import", "PLAN.md", "--json"]).expect_code(0).json();
    assert_eq!(import()["added"].as_array().unwrap().len(), 3);
    let again = import();
    assert_eq!((&again["added"], &again["skipped"]), (&json!([]), &json!(3)));
    scene.repo.write("PLAN.md", "- [ ] Ship\n  - [ ] Test\n- [ ] Rest\n- [ ] More\n");
    assert_eq!(import()["added"], json!(["task-004"]));
    assert_eq!(scene.all().len(), 4);
    scene.end();
}

#[test]
fn init_keeps_the_only_backup_of_a_list() {
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    scene.add("Two", "true", &[]);
    std::fs::remove_file(scene.repo.path.join("harness-tasks.json")).unwrap();
    let said = scene.tasks(&["init", "--json"]).expect_code(0);
    assert_eq!(said.json()["created"], false, "{said:?}");
    assert_eq!(scene.task("task-001")["title"], "One");
    // A backup that cannot be restored is kept beside the new list.
    std::fs::remove_file(scene.repo.path.join("harness-tasks.json")).unwrap();
    scene.repo.write("harness-tasks.json.bak", "{ \"tasks\": [ { \"title\": \"Mine\"");
    let said = scene.tasks(&["init", "--json"]).expect_code(0);
    assert_eq!(said.json()["created"], true, "{said:?}");
    scene.add("Three", "true", &[]);
    scene.add("Four", "true", &[]);
    assert!(scene.repo.read("harness-tasks.json.damaged").contains("Mine"));
    scene.end();
}
