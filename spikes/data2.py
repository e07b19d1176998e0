import numpy as np, pandas as pd
import os; S=os.environ['TENSORVEIL_DATA']+'/'
def load(name, val=True):
    """train, test; val=True: split of the training half (choices); False: real test"""
    if name=='filmtrust': a,b=[pd.read_csv(S+f'filmtrust/{x}.csv') for x in('train','test')]; bounds=(.5,4)
    if name=='birm': a,b=[pd.read_csv(S+f'birmingham-parking/{x}.csv') for x in('train10','test90')]; bounds=(0,5000)
    if name=='mimic': a,b=[pd.read_csv(S+f'mimic-demo/{x}.csv',dtype={'diagnosis':str,'procedure':str,'patient':str}) for x in('train','test')]; bounds=(0,20)
    if name=='ua': a,b=[pd.read_csv(S+f'ml-100k/{x}',sep='\t',header=None).iloc[:,:3] for x in('ua.base','ua.test')]; bounds=(1,5)
    a.columns=list(a.columns[:-1])+['v'] if name!='ua' else ['u','i','v']; b.columns=a.columns
    if val:
        r=np.random.default_rng(5).random(len(a)); b=a[r<.1] if name!='birm' else a[r<.1]; a=a[r>=.1]
    keys=a.columns[:-1]; cs=[];ct=[];shape=[]
    for k in keys:
        u=pd.unique(pd.concat([a[k],b[k]]).astype(str)); u=np.sort(u); shape.append(len(u))
        cs.append(np.searchsorted(u,a[k].astype(str).values)); ct.append(np.searchsorted(u,b[k].astype(str).values))
    return np.column_stack(cs).astype(np.uint32),a.v.values.astype(float),np.column_stack(ct).astype(np.uint32),b.v.values.astype(float),tuple(shape),bounds
def simple_scale(v, bounds, L=32):
    """exact marginal; atoms if few distinct"""
    from scipy.special import ndtri
    u,c=np.unique(v,return_counts=True)
    if len(u)<=14:
        edges=(u[1:]+u[:-1])/2; cuts=ndtri(np.clip(np.cumsum(c)[:-1]/c.sum(),1e-4,1-1e-4)); return edges,cuts,u,u,True
    z=np.sqrt(v-bounds[0]); mu,sd=z.mean(),z.std()
    h,e=np.histogram(z,bins=200); f=np.cumsum(np.maximum(h,.05)**(1/3)); f/=f[-1]
    ze=np.interp(np.arange(1,L)/L,f,e[1:]); edges=ze**2+bounds[0]
    full=np.concatenate([[v.min()],edges,[v.max()]])
    return edges,(ze-mu)/sd,full[:-1],full[1:],False
def rr(L,eps):
    e=np.exp(eps); Q=np.full((L,L),1/(e+L-1)); np.fill_diagonal(Q,e/(e+L-1)); return Q
def through(levels,Q,rng):
    u=rng.random(len(levels)); return (np.cumsum(Q,1)[levels]<u[:,None]).sum(1).clip(0,Q.shape[1]-1)
