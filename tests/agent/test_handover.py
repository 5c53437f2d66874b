import asyncio
import sys
from contextlib import closing
from pathlib import Path

from milligpu.agent.handover import AgentHandover


def test_a_new_agent_waits_for_the_lock_and_reports_that_it_has_registered(tmp_path: Path) -> None:
    async def story() -> None:
        with closing(AgentHandover(tmp_path)) as old, closing(AgentHandover(tmp_path)) as new:
            assert await old.take_over() is None
            turn = asyncio.create_task(new.take_over())
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


def test_an_agent_notices_that_its_successor_ended_too_early(tmp_path: Path) -> None:
    async def story() -> None:
        with closing(AgentHandover(tmp_path)) as old:
            await old.take_over()
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "succession.sock"))
            writer.write(b"ready\n")
            await old.asked.wait()
            old.hand_over()
            assert await reader.readline() == b"yours\n"
            writer.close()
            await old.abandoned.wait()
            assert not old.settled.is_set()

    asyncio.run(asyncio.wait_for(story(), 30))


def test_the_lock_of_an_agent_that_was_killed_is_free(tmp_path: Path) -> None:
    async def story() -> None:
        program = (
            "import asyncio, sys; from pathlib import Path; from milligpu.agent.handover import AgentHandover\n"
            "async def main():\n await AgentHandover(Path(sys.argv[1])).take_over()\n print('mine', flush=True)\n"
            " await asyncio.sleep(600)\nasyncio.run(main())"
        )
        pipe = asyncio.subprocess.PIPE
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(tmp_path), stdout=pipe)
        assert other.stdout is not None
        assert await other.stdout.readline() == b"mine\n"
        with closing(AgentHandover(tmp_path)) as heir:
            turn = asyncio.create_task(heir.take_over())
            other.kill()
            await other.wait()
            assert await turn is None

    asyncio.run(asyncio.wait_for(story(), 60))
