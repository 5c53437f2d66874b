import asyncio
import sys
from contextlib import closing
from pathlib import Path

from milligpu.node.succession import Succession


def test_a_newcomer_waits_for_its_turn_and_both_hear_of_each_other(tmp_path: Path) -> None:
    async def story() -> None:
        with closing(Succession(tmp_path)) as old, closing(Succession(tmp_path)) as new:
            assert await old.inherit() is None
            turn = asyncio.create_task(new.inherit())
            await old.asked.wait()
            assert not turn.done()
            old.hand_over()
            before = await turn
            assert before is not None
            assert not old.settled.is_set()
            await before.settled()
            await old.settled.wait()
            assert not old.abandoned.is_set()
            before.close()

    asyncio.run(asyncio.wait_for(story(), 30))


def test_one_that_is_left_by_its_successor_hears_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        with closing(Succession(tmp_path)) as old:
            await old.inherit()
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "succession.sock"))
            writer.write(b"ready\n")
            await old.asked.wait()
            old.hand_over()
            assert await reader.readline() == b"yours\n"
            writer.close()
            await old.abandoned.wait()
            assert not old.settled.is_set()

    asyncio.run(asyncio.wait_for(story(), 30))


def test_the_lock_of_one_who_died_is_free(tmp_path: Path) -> None:
    async def story() -> None:
        program = (
            "import asyncio, sys; from pathlib import Path; from milligpu.node.succession import Succession\n"
            "async def main():\n await Succession(Path(sys.argv[1])).inherit()\n print('mine', flush=True)\n"
            " await asyncio.sleep(600)\nasyncio.run(main())"
        )
        pipe = asyncio.subprocess.PIPE
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(tmp_path), stdout=pipe)
        assert other.stdout is not None
        assert await other.stdout.readline() == b"mine\n"
        with closing(Succession(tmp_path)) as heir:
            turn = asyncio.create_task(heir.inherit())
            other.kill()
            await other.wait()
            assert await turn is None

    asyncio.run(asyncio.wait_for(story(), 60))
