%% The same work on Erlang's machine. run(What, N) prints a rate per second.
-module(beam).
-behaviour(supervisor).
-export([run/2, init/1, start_idle/0]).

run(What, N) ->
    measure(What, max(N div 10, 1)),
    io:format("~f~n", [measure(What, N)]).

measure(tell, N) ->
    Parent = self(),
    Counter = spawn(fun() -> count(N), Parent ! counted end),
    rate(N, fun() -> tell(Counter, N), receive counted -> ok end end);
measure(ask, N) ->
    Server = spawn(fun serve/0),
    Rate = rate(N, fun() -> ask(Server, N) end),
    exit(Server, kill),
    Rate;
measure(spawn, N) ->
    Result = binary:copy(<<"r">>, 200),
    rate(N, fun() -> spawn_in_waves(Result, N) end);
measure(start_child, N) ->
    {ok, Supervisor} = supervisor:start_link(?MODULE, []),
    rate(N, fun() -> start_children(Supervisor, N) end).

rate(N, Work) ->
    Began = erlang:monotonic_time(nanosecond),
    Work(),
    N * 1.0e9 / (erlang:monotonic_time(nanosecond) - Began).

count(0) -> ok;
count(N) -> receive _ -> count(N - 1) end.

tell(_, 0) -> ok;
tell(Counter, N) -> Counter ! N, tell(Counter, N - 1).

serve() ->
    receive {From, Ref} -> From ! {Ref, 1} end,
    serve().

ask(_, 0) -> ok;
ask(Server, N) ->
    Ref = make_ref(),
    Server ! {self(), Ref},
    receive {Ref, _} -> ok end,
    ask(Server, N - 1).

%% 1000 at a time, each of which ends by telling its result.
spawn_in_waves(_, N) when N =< 0 -> ok;
spawn_in_waves(Result, N) ->
    Parent = self(),
    Wave = min(N, 1000),
    [spawn(fun() -> Parent ! {done, Result} end) || _ <- lists:seq(1, Wave)],
    [receive {done, _} -> ok end || _ <- lists:seq(1, Wave)],
    spawn_in_waves(Result, N - Wave).

start_children(_, 0) -> ok;
start_children(Supervisor, N) ->
    {ok, Child} = supervisor:start_child(Supervisor, []),
    ok = supervisor:terminate_child(Supervisor, Child),
    start_children(Supervisor, N - 1).

init([]) ->
    {ok, {#{strategy => simple_one_for_one},
          [#{id => idle, start => {?MODULE, start_idle, []}, restart => temporary}]}}.

start_idle() ->
    {ok, spawn_link(fun() -> receive stop -> ok end end)}.
