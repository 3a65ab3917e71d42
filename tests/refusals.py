"""What a command says where it refuses."""


def refused_before_any_work(capsys, start):
    """Nothing is printed but one sentence, which begins like this and goes on with the fix."""
    output, errors = capsys.readouterr()
    assert not output
    assert errors.count("\n") == 1
    errors = errors.replace("\\\\", "/")  # of a path on Windows, as repr shows it
    assert errors.startswith(start)
    assert ";" in errors
