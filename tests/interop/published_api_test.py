"""The published API has not changed in a way that breaks programs that use it. Every kind of change is detected, and
additions are allowed."""

import published_api
import pytest

BASE = """syntax = "proto3";
package t;
service Jobs {
  // Returns a job.
  rpc Get(Job) returns (Job);
}
// A job.
message Job {
  string id = 1;  // its id
  repeated uint32 ranks = 2;
  oneof kind {
    string text = 3;
    bool flag = 4;
  }
  optional double loss = 5;
}
enum State {
  NONE = 0;
  RUNNING = 1;  // it runs
}
"""
CHANGES = [  # the old text, the new text, and the report (None: the change is allowed)
    ("string id = 1;", "string id = 9;", "number was 1 and is 9"),
    ("string id = 1;", "bytes id = 1;", "type was string and is bytes"),
    ("string id = 1;", 'string id = 1 [json_name = "name"];', "json was id and is name"),
    ("string id = 1;", "repeated string id = 1;", "label was optional and is repeated"),
    ("string id = 1;", "string id = 1 [deprecated = true];", "options was not set and is deprecated:_true"),
    ("its id", "the id of another job", "the words of its comment have changed"),
    ("its id", "Its  ID.", None),
    ("optional double loss", "double loss", "label was presence and is optional"),
    ("    bool flag = 4;\n  }", "  }\n  bool flag = 4;", "oneof was kind and is not set"),
    ("  string id = 1;  // its id\n", "", "field t.Job.id was removed: add `reserved 1;`"),
    ("  string id = 1;  // its id\n", "  reserved 1;\n", "field t.Job.id was removed"),
    ("  string id = 1;  // its id\n", '  reserved 1;\n  reserved "id";\n', None),
    ("string id = 1;", "string name = 1;", "field t.Job.id was removed"),
    ("  RUNNING = 1;  // it runs\n", "", "value t.State.RUNNING was removed"),
    ("  RUNNING = 1;  // it runs\n", '  reserved 1;\n  reserved "RUNNING";\n', None),
    ("RUNNING = 1;", "RUNNING = 2;", "number was 1 and is 2"),
    ("returns (Job)", "returns (stream Job)", "streams was 00 and is 01"),
    ("  // Returns a job.\n  rpc Get(Job) returns (Job);\n", "", "method t.Jobs.Get was removed"),
    ("  optional double loss = 5;\n", "  optional double loss = 5;\n  string added = 6;\n", None),
    ("  NONE = 0;\n", "  NONE = 0;\n  ADDED = 7;\n", None),
]


def table_of(text, folder):
    folder.mkdir()
    (folder / "t.proto").write_text(text)
    return published_api.Table(published_api.compile_protos(folder))


def test_the_published_api_has_not_changed():
    found = published_api.problems(published_api.parse(published_api.RECORD.read_text()), published_api.current())

    assert not found, "\n".join(found)


def test_the_record_is_complete_enough_to_detect_changes():
    recorded = published_api.parse(published_api.RECORD.read_text())

    assert recorded["field trainyard.v1.Job.resource_version"]["number"] == "26"
    assert "default_value" in recorded["field trainyard.v1.CoordinatorConfig.lease_ms"]["options"]
    assert recorded["method trainyard.v1.JobService.Watch"]["streams"] == "01"
    assert recorded["value trainyard.v1.JobState.JOB_STATE_PAUSED"]["number"] == "10"
    assert "reason VERSION_MISMATCH" in recorded
    assert len(recorded) > 600


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_change_is_reported_and_an_addition_is_allowed(number, tmp_path):
    old, new, report = CHANGES[number]
    assert old in BASE
    recorded = published_api.parse(table_of(BASE, tmp_path / "before").format())

    found = published_api.problems(recorded, table_of(BASE.replace(old, new), tmp_path / "after"))

    assert (len(found) == 1 and report in found[0]) if report else not found, found
