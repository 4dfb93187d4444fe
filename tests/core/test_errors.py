from ramify.core.errors import MAX_NAMED, nearest


def test_the_nearest_names_are_told_or_all_that_are_known() -> None:
    assert nearest("serch", ["search", "python"]) == "did you mean 'search'?"
    assert nearest("zzz", ["search", "python"]) == "known: python, search"
    assert nearest("zzz", []) == "known: none"


def test_of_very_many_names_the_first_are_told_and_how_many_more_there_are() -> None:
    told = nearest("zzz", (f"tool{i:05}" for i in range(10_000)))
    assert told.startswith("known: tool00000, tool00001, ")
    assert told.endswith(f"tool{MAX_NAMED - 1:05}, … and {10_000 - MAX_NAMED} more")
